"""tandem bench serve: both trace formats and a synthetic load, against the running cluster."""
import json
import re
import signal
import subprocess

import pytest

import harness
from harness import ROOT, tandem

TRACES = ROOT / "tests/data/traces"


def bench(cluster, *arguments):
    return json.loads(tandem("bench", "serve", "--url", cluster.url, "--json", *arguments).stdout)


def test_each_run_sends_prompts_of_its_own_unless_told_otherwise(cluster):
    load = ["--requests", 4, "--rate", 1000, "--prompt-tokens", 96, "--output-tokens", 2]
    first, second = bench(cluster, *load), bench(cluster, *load)
    assert first["seed"] != second["seed"]
    assert first["cached_tokens"] == second["cached_tokens"] == 0
    again = bench(cluster, *load, "--seed", first["seed"])
    assert again["seed"] == first["seed"]
    assert again["cached_tokens"] >= 4 * 64, "the same prompts, which the cluster remembers"


def test_the_urls_that_other_clients_take(cluster):
    for url in (cluster.url + "/v1", cluster.url + "/v1/", cluster.url + "/"):
        run = tandem("bench", "serve", "--url", url, "--requests", 1, "--prompt-tokens", 8, "--output-tokens", 1)
        assert "1 completed, 0 failed" in run.stdout
    run = tandem("bench", "serve", "--run-dir", cluster.run_dir, "--requests", 1, "--prompt-tokens", 8, "--output-tokens", 1)
    assert "1 completed, 0 failed" in run.stdout


def test_a_load_that_is_refused_says_why(cluster):
    load = ["bench", "serve", "--url", cluster.url, "--requests", 3, "--rate", 1000, "--prompt-tokens", 8, "--output-tokens", 100000]
    run = tandem(*load, check=False)
    assert run.returncode == 1
    assert "nan" not in run.stdout and "  3 x http 400: max_tokens is 100000; " in run.stdout
    report = json.loads(tandem(*load, "--json", check=False).stdout)
    assert report["requests"]["failed"] == 3 and report["ttft_seconds"]["p50"] is None
    assert len(report["errors"]) == 1 and "maximum context length" in next(iter(report["errors"]))


@pytest.mark.parametrize("flags", [
    ["--requests", 0], ["--requests", -1], ["--concurrency", 0], ["--rate", 0], ["--rate", -1], ["--time-scale", -1],
    ["--length-scale", 0], ["--output-tokens", 0], ["--prompt-tokens", 0], ["--seed", -1], ["--max-prompt-tokens", -1],
    ["--slo-ttft-ms", -1], ["--trace", "/nowhere.csv"], ["--trace", "/tmp"]])
def test_numbers_that_make_no_load_are_refused(flags):
    run = tandem("bench", "serve", "--url", "http://127.0.0.1:1", *flags, check=False)
    assert run.returncode == 2 and run.stdout == "", run.stderr
    assert flags[0] in run.stderr and str(flags[1]) in run.stderr


def test_ctrl_c_reports_what_had_ended(cluster):
    process = subprocess.Popen(
        [harness.BIN / "tandem", "bench", "serve", "--url", cluster.url, "--requests", "100000", "--rate", "20", "--prompt-tokens",
         "8", "--output-tokens", "2", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.environment())
    for line in process.stderr:  # progress, once a second
        if not re.search(r" 0 ended", line):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60 * harness.SLOWDOWN)
    assert process.returncode == 1, err
    requests = json.loads(out)["requests"]
    assert 0 < requests["completed"] == requests["sent"] < requests["planned"] == 100000 and requests["failed"] == 0
    cluster.wait_idle()


def check(report, sent):
    assert report["requests"]["completed"] == sent and report["requests"]["failed"] == 0, report
    for what in ("ttft", "itl", "e2e"):
        quantiles = report[f"{what}_seconds"]
        assert 0 <= quantiles["p50"] <= quantiles["p90"] <= quantiles["p99"]


def test_poisson_load_of_exact_lengths(cluster):
    report = bench(cluster, "--rate", 20, "--requests", 10, "--prompt-tokens", 64, "--output-tokens", 8)
    check(report, 10)
    assert report["prompt_tokens"] == 640 and report["output_tokens"] == 80


@pytest.mark.parametrize("name", ["azure_conv_2023.csv", "mooncake_conversation.jsonl"])
def test_traces_are_replayed(name, cluster):
    check(bench(cluster, "--trace", TRACES / name, "--requests", 6, "--length-scale", 0.02, "--time-scale", 0.01), 6)


def test_closed_loop(cluster):
    check(bench(cluster, "--requests", 6, "--concurrency", 2, "--prompt-tokens", 32, "--output-tokens", 4), 6)
