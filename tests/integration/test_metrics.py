"""Metrics of every process, read with a strict parser, and logs."""
import difflib
import json
import os

import pytest

import harness
import metrics_page
from harness import metric

# What design.md section 10 and the issue ask for, by process.
WANTED = {
    "router": ["tandem_router_queue_depth", "tandem_router_queue_wait_seconds_count", "tandem_router_ttft_seconds_count",
               "tandem_router_itl_seconds_count", "tandem_router_e2e_seconds_count", "tandem_router_prompt_tokens_total",
               "tandem_router_output_tokens_total", "tandem_router_prefill_to_decode_seconds_count",
               "tandem_router_transfer_wire_bytes_total", "tandem_router_transfer_raw_bytes_total",
               "tandem_router_transfer_seconds_count", "tandem_router_kv_miss_ratio", "tandem_router_generations_fenced_total"],
    "prefill-0": ["tandem_prefill_tokens_total", "tandem_prefill_transfer_wire_bytes_total",
                  "tandem_prefill_transfer_raw_bytes_total", "tandem_prefill_transfer_seconds_count",
                  "tandem_prefill_transfer_exposed_seconds_count"],
    "decode-0": ["tandem_decode_tokens_total", "tandem_decode_open_reservations", "tandem_decode_leases_expired_total",
                 "tandem_decode_generations_fenced_total", "tandem_decode_batch_requests_count",
                 "tandem_decode_queue_wait_seconds_count"],
}


@pytest.mark.parametrize("process", WANTED)
def test_every_process_has_its_metrics(process, cluster):
    cluster.completion(prompt=list(range(900, 980)), max_tokens=4, ignore_eos=True)
    def missing():
        names = {name for name, _ in cluster.metrics(process)}
        return [name for name in WANTED[process] if name not in names]
    harness.wait_until(lambda: not missing(), 5, f"{missing()}")  # some come with the next heartbeat
    samples = cluster.metrics(process)
    assert any("kv" in name and "block" in name for name, _ in samples), "KV blocks"
    for name, labels in samples:
        assert name.startswith(("tandem_", "process_", "exposer_")), name
        for key, value in labels:
            assert len(value) < 100, (name, key, value)


def test_counts_follow_the_requests(cluster):
    before = {p: cluster.metrics(p) for p in WANTED}
    for number in range(3):
        cluster.completion(prompt=list(range(1000 + 100 * number, 1080 + 100 * number)), max_tokens=5, ignore_eos=True)
    cluster.wait_idle()
    after = {p: cluster.metrics(p) for p in WANTED}

    def grown(process, name):
        return metric(after[process], name) - metric(before[process], name)
    assert grown("router", "tandem_router_output_tokens_total") == 15
    assert grown("router", "tandem_router_prompt_tokens_total") == 240
    assert grown("router", "tandem_router_ttft_seconds_count") == 3
    assert grown("router", "tandem_router_e2e_seconds_count") == 3
    assert grown("router", "tandem_router_itl_seconds_count") >= 3
    assert grown("prefill-0", "tandem_prefill_tokens_total") == 240
    assert grown("prefill-0", "tandem_prefill_transfer_raw_bytes_total") > 0
    for kind in ("raw", "wire"):  # both ends count the same bytes; the router hears of them a little later
        sent = metric(after["prefill-0"], f"tandem_prefill_transfer_{kind}_bytes_total")
        harness.wait_until(lambda: metric(cluster.metrics(), f"tandem_router_transfer_{kind}_bytes_total") == sent, 5,
                           f"the router's count of {kind} bytes")


def test_the_transport_in_use_is_named(cluster):
    status = cluster.status()
    assert status["transfers"]["transport"].startswith("ucx ")
    assert all(n["transport"] == "ucx" and n["transport_detail"].startswith("ucx ") for n in status["nodes"])
    assert {n["transport_reason"] for n in status["nodes"]} == {"KV lies in host memory"}
    for node in ["prefill", "decode"]:
        chosen = f'tandem_{node}_transport_choice_info{{reason="host_memory",transport="ucx"}} 1'
        assert chosen in cluster.metrics_text(f"{node}-0")


def test_logs_are_json_lines_without_prompts(start):
    cluster = start()
    secret = "zanzibar pomegranate"
    cluster.chat(messages=[{"role": "user", "content": f"My password is {secret}, remember it well, and tell me about flights."}],
                 max_tokens=8)
    for path in cluster.run_dir.glob("*.log"):
        text = path.read_text()
        assert secret not in text
        for line in text.splitlines():
            entry = json.loads(line)
            assert {"time", "level", "event"} <= set(entry), line
    events = [json.loads(line) for line in (cluster.run_dir / "router.log").read_text().splitlines()]
    assert any("request_id" in e or "request" in e for e in events), "request ids"


def test_one_request_can_be_followed_through_the_logs(start):
    """From the client's X-Request-Id to the nodes, each choice by its own number."""
    cluster = start()
    answer = cluster.post("/v1/chat/completions", {"model": "chat-6m", "n": 2, "max_tokens": 8, "messages": [
        {"role": "user", "content": "I would like a table for two in San Jose, please."}]}, headers={"X-Request-Id": "followed-1"})
    assert answer.status == 200, answer.text
    cluster.chat(messages=[{"role": "user", "content": "Another one, please."}], max_tokens=8)
    cluster.wait_idle()

    def lines(name, event):
        entries = [json.loads(line) for line in (cluster.run_dir / f"{name}.log").read_text().splitlines()]
        return [e for e in entries if e["event"] == event]

    def answered():
        return [e for e in lines("router", "request") if e["request_id"] == "followed-1"]
    [mine] = harness.wait_until(answered, 10, "the request's line")
    assert mine["id"] == answer.json["id"]
    ids = set(mine["requests"])
    assert len(mine["requests"]) == len(ids) == 2
    for node, event in [("prefill-0", "prefilled"), ("prefill-0", "transferred"), ("decode-0", "generated")]:
        harness.wait_until(lambda: ids < {e["request"] for e in lines(node, event)}, 10, f"{ids} and another in {event} of {node}")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """What each process says before anybody has asked for anything, and afterwards: two of {section of the page: text}."""
    names = {"Router": "router", "Prefill node": "prefill-0", "Decode node": "decode-0"}
    with harness.Cluster(tmp_path_factory.mktemp("fresh"), {"cpu_tail": {"enabled": True}}) as cluster:
        def read():
            return {title: cluster.metrics_text(name) for title, name in names.items()}
        before = read()
        cluster.chat(messages=[{"role": "user", "content": "I would like a table for two in San Jose, please."}], max_tokens=8)
        cluster.wait_idle()
        # Known to the router from a node's next heartbeat on.
        harness.wait_until(lambda: "tandem_router_kv_miss_ratio{" in cluster.metrics_text(), 30, "the nodes' prefix counts")
        yield before, read()


def test_the_page_says_what_each_process_has(texts):
    """Read apart from how it is made: no metric is listed for a process without it, or missing for one that has it."""
    page = metrics_page.listed((harness.ROOT / "docs/metrics.md").read_text())
    for title, text in texts[1].items():
        promised = {**page[metrics_page.EVERY], **page[title]}
        has = {name: kind for name, kind, _, _ in metrics_page.families(text)}
        assert {name: kind for name, (kind, _) in promised.items()} == has, title


def test_the_whole_step_budget_is_planned_for_at_first(texts):
    assert metric(harness.parse_metrics(texts[0]["Decode node"]), "tandem_decode_step_budget_ratio") == 1


def test_counters_are_there_before_their_first_event(texts):
    """rate() and alerts need the 0 before it."""
    page = metrics_page.listed((harness.ROOT / "docs/metrics.md").read_text())
    for title, text in texts[0].items():
        samples = {name for name, _ in harness.parse_metrics(text)}
        for name, (kind, _) in {**page[metrics_page.EVERY], **page[title]}.items():
            if kind == "gauge":
                continue  # of nodes and cards that may not be there
            assert (name if kind == "counter" else name + "_count") in samples, f"{title}: {name}"


def test_the_page_of_metrics_is_fresh(texts):
    found = {title: metrics_page.families(text) for title, text in texts[1].items()}
    assert not metrics_page.contradictions(found)
    made = metrics_page.render(found)
    page = harness.ROOT / "docs/metrics.md"
    if os.environ.get("TANDEM_TEST_UPDATE"):
        page.write_text(made)
    difference = list(difflib.unified_diff(page.read_text().splitlines(), made.splitlines(), "docs/metrics.md", "now", lineterm="", n=0))
    assert not difference, "run it with TANDEM_TEST_UPDATE=1:\n" + "\n".join(difference)
