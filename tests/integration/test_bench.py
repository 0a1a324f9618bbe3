"""tandem bench serve: both trace formats and a synthetic load, against the running cluster."""
import json

import pytest

from harness import ROOT, tandem

TRACES = ROOT / "tests/data/traces"


def bench(cluster, *arguments):
    return json.loads(tandem("bench", "serve", "--url", cluster.url, "--json", *arguments).stdout)


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
