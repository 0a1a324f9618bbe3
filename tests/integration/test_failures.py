"""What dies or stalls inside a cluster, and what everybody else then sees."""
import re
import signal

import pytest

import harness
from harness import PROMPT, metric, text_of, wait_until


def expected_text(cluster, tokens=400):
    return cluster.completion(prompt=PROMPT, max_tokens=tokens, ignore_eos=True)["choices"][0]["text"]


def read_with_kill(cluster, role, after_events=5, tokens=400):
    """Streams an answer, kills a role with SIGKILL in the midst of it, and reads on."""
    stream = cluster.long_answer(tokens)
    assert stream.status == 200
    text, usage, events = "", None, 0
    for event in stream.events():
        assert "error" not in event, event
        text += text_of(event)
        usage = event.get("usage") or usage
        events += 1
        if events == after_events:
            cluster.kill(role)
    assert stream.done
    return text, usage


def test_a_killed_decode_node_loses_and_repeats_no_token(start):
    cluster = start({"decode": [{"threads": 1}, {"threads": 1}]})
    reference = expected_text(cluster, 3000)

    def generated():
        return {name: metric(cluster.metrics(name), "tandem_decode_tokens_total") for name in ("decode-0", "decode-1")}
    before = generated()
    stream = cluster.long_answer(3000)
    events = []
    for event in stream.events():
        events.append(event)
        if len(events) == 5:
            now = generated()
            busy = max(now, key=lambda name: now[name] - before[name])
            assert now[busy] > before[busy]
            cluster.kill(busy)
    assert not [e for e in events if "error" in e]
    assert "".join(map(text_of, events)) == reference
    assert events[-1]["usage"]["completion_tokens"] == 3000
    assert metric(cluster.metrics(), "tandem_router_resumes_total") == 1
    assert cluster.restarts(busy) == 1
    cluster.wait_ready()
    cluster.wait_nodes(3)
    assert expected_text(cluster, 8) == expected_text(cluster, 8)
    cluster.wait_idle()


def test_the_only_decode_node_comes_back_and_the_stream_goes_on(start):
    cluster = start({"router": {"admission": {"deadline": "20s", "max_retries": 5}}})
    reference = expected_text(cluster)
    text, usage = read_with_kill(cluster, "decode-0")
    assert text == reference
    assert usage["completion_tokens"] == 400
    cluster.wait_ready()
    cluster.wait_idle()


@pytest.fixture
def start_failing(start, tmp_path):
    """Two decode nodes whose device can be lost (failing_decode.cc), in steps or in transfers, by touching the file given."""
    failing = harness.BIN.parent / "tests/failing-decode"
    if not failing.exists():
        pytest.skip("failing-decode is built in build trees only")
    programs = harness.programs_with(tmp_path / "bin", tandem_decode=failing)
    return lambda variable, fault: start({"decode": [{"threads": 1}, {"threads": 1}]}, env={variable: fault}, programs=programs)


def expect_a_device_lost_once(cluster):
    names = ("decode-0", "decode-1")
    lost = wait_until(lambda: next((name for name in names if cluster.restarts(name)), None), 20, "a node's restart")
    assert sum(cluster.restarts(name) for name in names) == 1
    log = (cluster.run_dir / f"{lost}.log").read_text()
    assert "device_lost" in log and "illegal memory access" in log
    assert re.search(rf"{lost}.* ended with exit code 1", (cluster.folder / "up.log").read_text())
    cluster.wait_ready()
    cluster.wait_nodes(3)


def test_a_lost_device_ends_the_node_and_loses_no_token(start_failing, tmp_path):
    """A sticky error of the device in mid-stream: the node says so, exits, is started again; its stream goes on elsewhere."""
    fault = tmp_path / "lose-the-device"
    cluster = start_failing("FAIL_STEP_FILE", fault)
    reference = expected_text(cluster)
    stream = cluster.long_answer()
    events = []
    for event in stream.events():
        events.append(event)
        if len(events) == 5:
            fault.touch()
    assert not fault.exists(), "no step failed"
    assert not [e for e in events if "error" in e]
    assert "".join(map(text_of, events)) == reference
    assert events[-1]["usage"]["completion_tokens"] == 400
    expect_a_device_lost_once(cluster)
    assert expected_text(cluster) == reference
    cluster.wait_idle()


def test_a_device_that_transfers_find_lost_ends_the_node_too(start_failing, tmp_path):
    """Nothing would ever arrive there again, though steps of what it has might go on."""
    fault = tmp_path / "lose-the-device"
    cluster = start_failing("FAIL_TRANSFER_FILE", fault)
    fault.touch()
    text = cluster.long_answer().text()
    assert not fault.exists(), "no transfer failed"
    expect_a_device_lost_once(cluster)
    assert text == expected_text(cluster)
    cluster.wait_idle()


def test_a_killed_prefill_node_disturbs_nobody(start):
    cluster = start()
    reference = expected_text(cluster)
    text, _ = read_with_kill(cluster, "prefill-0")  # decode has the KV: the stream does not even pause
    assert text == reference
    cluster.wait_ready()
    cluster.kill("prefill-0")
    # Without a prefill node at hand, decode prefills by itself.
    assert cluster.completion(prompt=PROMPT, max_tokens=8, ignore_eos=True)["choices"][0]["text"] == reference[:len(
        cluster.completion(prompt=PROMPT, max_tokens=8, ignore_eos=True)["choices"][0]["text"])]
    cluster.wait_ready()
    cluster.wait_nodes(2)
    before = cluster.status()["transfers"]["count"]
    cluster.completion(prompt=list(range(500, 600)), max_tokens=4, ignore_eos=True)
    wait_until(lambda: cluster.status()["transfers"]["count"] > before, 10, "a hand-over from the new prefill node")
    cluster.wait_idle()


def test_a_killed_router_comes_back_on_its_port(start):
    cluster = start()
    url = cluster.url
    old = cluster.pid("router")
    stream = cluster.long_answer(2000)
    cluster.kill("router")
    with pytest.raises(Exception):
        list(stream.events())
        assert stream.done
    wait_until(lambda: cluster.pid("router") not in (0, old), 20, "a new router process")
    cluster.wait_ready()
    assert cluster.url == url
    cluster.wait_nodes(2)
    assert cluster.completion(prompt=PROMPT, max_tokens=4)["usage"]["completion_tokens"] > 0
    cluster.wait_idle()  # what the lost request held was freed


@pytest.mark.parametrize("role", ["prefill-0", "decode-0"])
def test_a_stopped_node_is_noticed_and_fenced(role, start):
    cluster = start({"router": {"control": {"peer_timeout": "2s"}, "admission": {"deadline": "5s"}}})
    cluster.kill(role, signal.SIGSTOP)
    try:
        wait_until(lambda: all(n["state"] != "ready" for n in cluster.status()["nodes"] if n["id"] == role), 20,
                   f"{role} no longer counted as ready")
        if role == "prefill-0":
            answer = cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 4
        else:
            response = cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": PROMPT, "max_tokens": 4})
            assert response.status == 503 and "error" in response.json
            assert cluster.get("/health/ready").status == 503
            assert cluster.get("/health/live").status == 200
    finally:
        cluster.kill(role, signal.SIGCONT)
    cluster.wait_nodes(2)
    assert metric(cluster.metrics(), "tandem_router_generations_fenced_total") == 1
    assert metric(cluster.metrics(), "tandem_router_nodes_lost_total") == 1
    wait_until(lambda: cluster.get("/health/ready").status == 200, 20, "ready again")
    assert cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
    cluster.wait_idle()
