"""A decode node whose device is the CPU too, with a CPU tail beside it."""
import json

import pytest

import harness
from harness import metric, wait_until

PROMPT = list(range(200, 300))

# 170 blocks of 48 KiB on the device, of which 161 want to be free: every answer of more than 60 tokens leaves.
SHORT = {"kv": {"blocks": 170}, "cpu_tail": {"enabled": True, "after_tokens": 40, "free_below": "7700KiB", "memory": "64MiB",
                                             "threads": 1}}
# The same with blocks of 16.5 KiB.
SHORT_INT4 = harness.merge(SHORT, {"kv": {"format": "int4"}, "cpu_tail": {"free_below": "2645KiB"}})


def answer(cluster, **fields):
    request = {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True, **fields}
    return cluster.completion(**request)["choices"][0]["text"]


@pytest.mark.parametrize("config", [SHORT, SHORT_INT4], ids=["bf16", "int4"])
def test_answers_are_the_same_on_the_tail(start, config):
    plain = start({"kv": config["kv"]})
    wanted = [answer(plain), answer(plain, temperature=1, seed=7)]
    cluster = start(config)
    assert [answer(cluster), answer(cluster, temperature=1, seed=7)] == wanted
    cluster.wait_idle()
    samples = cluster.metrics("decode-0")
    assert metric(samples, "tandem_decode_cpu_tail_moves_total", direction="out") == 2
    assert metric(samples, "tandem_decode_cpu_tail_bytes_total") > 0
    assert metric(samples, "tandem_decode_cpu_tail_seconds_count") >= 2
    wait_until(lambda: metric(cluster.metrics("decode-0"), "tandem_decode_cpu_tail_requests") == 0, 5, "an empty tail")
    events = [json.loads(line) for line in (cluster.run_dir / "decode-0.log").read_text().splitlines()]
    assert any(e["event"] == "cpu_tail" and e["free_below_bytes"] in (7700 * 1024, 2645 * 1024) for e in events)


def test_a_client_that_leaves_frees_the_tail(start):
    cluster = start(SHORT)
    stream = cluster.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True})
    for _ in stream.events():
        if metric(cluster.metrics("decode-0"), "tandem_decode_cpu_tail_requests") == 1:
            break
    stream.close()
    cluster.wait_idle()
    wait_until(lambda: metric(cluster.metrics("decode-0"), "tandem_decode_cpu_tail_requests") == 0, 5, "an empty tail")


def test_a_killed_node_loses_nothing_that_was_on_its_tail(start):
    cluster = start(SHORT)
    wanted = answer(cluster, max_tokens=1500)
    stream = cluster.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True})
    text, killed = "", False
    for event in stream.events():
        assert "error" not in event, event
        text += harness.text_of(event)
        if not killed and metric(cluster.metrics("decode-0"), "tandem_decode_cpu_tail_requests") == 1:
            cluster.kill("decode-0")
            killed = True
    assert stream.done and killed and text == wanted


def test_thresholds_beyond_the_pool_are_refused(tmp_path):
    config = {"model": {"path": str(harness.CHAT_MODEL)}, "kv": {"memory": "8MiB"}, "router": {"control": {"port": 1}},
              "cpu_tail": {"enabled": True, "free_below": "2GiB"}}
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(config))
    run = harness.subprocess.run([str(harness.BIN / "tandem-decode"), "--config", str(path)], capture_output=True, text=True,
                                 timeout=60 * harness.SLOWDOWN, env=harness.environment())
    assert run.returncode == 2 and "cpu_tail.free_below" in run.stderr and "2GiB" in run.stderr, run.stderr
