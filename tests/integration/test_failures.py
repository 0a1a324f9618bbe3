"""What dies, leaves, stalls or talks nonsense, and what everybody else then sees."""
import json
import os
import pathlib
import pty
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

import harness
from harness import SLOWDOWN, is_alive, metric, text_of, wait_until

PROMPT = list(range(200, 300))  # long enough for a hand-over


def long_answer(cluster, tokens=400):
    return cluster.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True,
                                              "stream_options": {"include_usage": True}})


def expected_text(cluster, tokens=400):
    return cluster.completion(prompt=PROMPT, max_tokens=tokens, ignore_eos=True)["choices"][0]["text"]


def read_with_kill(cluster, role, after_events=5, tokens=400):
    """Streams an answer, kills a role with SIGKILL in the midst of it, and reads on."""
    stream = long_answer(cluster, tokens)
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
    stream = long_answer(cluster, 3000)
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


def test_a_lost_device_ends_the_node_and_loses_no_token(start, tmp_path):
    """A sticky error of the device in mid-stream: the node says so, exits, is started again; its stream goes on elsewhere."""
    fault = tmp_path / "lose-the-device"
    failing = harness.BIN.parent / "tests/failing-decode"
    if not failing.exists():
        pytest.skip("failing-decode is built in build trees only")
    programs = harness.programs_with(tmp_path / "bin", tandem_decode=failing)
    cluster = start({"decode": [{"threads": 1}, {"threads": 1}]}, env={"FAIL_DEVICE_FILE": fault}, programs=programs)
    reference = expected_text(cluster)
    stream = long_answer(cluster)
    events = []
    for event in stream.events():
        events.append(event)
        if len(events) == 5:
            fault.touch()
    assert not fault.exists(), "no step failed"
    assert not [e for e in events if "error" in e]
    assert "".join(map(text_of, events)) == reference
    assert events[-1]["usage"]["completion_tokens"] == 400
    names = ("decode-0", "decode-1")
    lost = wait_until(lambda: next((name for name in names if cluster.restarts(name)), None), 20, "a node's restart")
    assert sum(cluster.restarts(name) for name in names) == 1
    log = (cluster.run_dir / f"{lost}.log").read_text()
    assert "device_lost" in log and "illegal memory access" in log
    assert re.search(rf"{lost}.* ended with exit code 1", (cluster.folder / "up.log").read_text())
    cluster.wait_ready()
    cluster.wait_nodes(3)
    assert expected_text(cluster) == reference
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
    stream = long_answer(cluster, 2000)
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


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(stream, cluster):
    if stream:
        leaver = long_answer(cluster, 3000)
        for number, _ in enumerate(leaver.events()):
            if number == 2:
                break
    else:
        leaver = cluster.connection()
        leaver.request("POST", "/v1/completions", b'{"model": "%s", "prompt": [5, 6], "max_tokens": 3000, "ignore_eos": true}'
                       % cluster.model_id.encode(), {"Content-Type": "application/json"})
        wait_until(lambda: cluster.status()["requests"]["running"] == 1, 10, "the request running")
    other = cluster.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True})
    leaver.close()
    assert sum(1 for _ in other.events()) > 10 and other.done  # nobody else noticed
    cluster.wait_idle(5)


def test_many_cancelled_prompts_block_nobody(cluster):
    for number in range(10):
        leaver = cluster.connection()
        leaver.request("POST", "/v1/completions", b'{"model": "%s", "prompt": [%s], "max_tokens": 500, "stream": true}' % (
            cluster.model_id.encode(), b",".join(b"%d" % (300 + (number + i) % 1000) for i in range(2000))),
            {"Content-Type": "application/json"})
        leaver.sock.close()
    begin = time.monotonic()
    cluster.completion(prompt=[5, 6, 7], max_tokens=1)
    assert time.monotonic() - begin < 8 * SLOWDOWN
    cluster.wait_idle(20)


GARBAGE = {
    "zeros": bytes(4096),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "huge length": struct.pack("<IIQ", 0xFFFFFFFF, 0xFFFFFFFF, 2 ** 63) * 64,
    "random": bytes((i * 7919 + 13) % 251 for i in range(65536)),
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_the_control_port_touches_nobody(name, cluster):
    address = cluster.address("router", "control")
    stream = long_answer(cluster, 60)
    connections = []
    for _ in range(4):
        connection = socket.create_connection(address, timeout=10)
        try:
            connection.sendall(GARBAGE[name])
        except OSError:
            pass
        connections.append(connection)
    assert sum(1 for _ in stream.events()) > 5 and stream.done
    for connection in connections:
        connection.close()
    assert cluster.status()["ready"]


def ipv4_of(address):
    """/proc writes addresses as little-endian words; wildcards and IPv6 are reached over the loopback."""
    if len(address) != 8 or address == "00000000":
        return "127.0.0.1"
    return socket.inet_ntoa(struct.pack("<I", int(address, 16)))


def listening_ports(pid):
    """(address, port) of the TCP sockets that a process listens on, from /proc."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/{pid}/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].rsplit(":", 1)
                ports.add((ipv4_of(address), int(port, 16)))
    return ports


@pytest.mark.parametrize("role", ["decode-0", "prefill-0"])
def test_garbage_on_a_nodes_ports_touches_nobody(role, cluster):
    """Every port that a node listens on: its metrics endpoint, and what UCX opens for connecting."""
    listening = listening_ports(cluster.pid(role))
    assert len(listening) >= 2, "the metrics endpoint and UCX's own"
    for host, port in listening:
        for data in GARBAGE.values():
            try:
                connection = socket.create_connection((host, port), timeout=10)
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            connection.close()
    answer = cluster.completion(prompt=list(range(700, 800)), max_tokens=8, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 8
    assert cluster.restarts(role) == 0


def test_slow_clients_are_cut_off(start):
    cluster = start({"router": {"http": {"header_timeout": "500ms", "body_timeout": "500ms", "idle_timeout": "1s"}}})
    address = cluster.address()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    cases = {"header": head, "body": head + b"Content-Length: 1000\r\n\r\n{", "nothing": b""}
    for name, sent in cases.items():
        connection = socket.create_connection(address, timeout=15 * SLOWDOWN)
        connection.sendall(sent)
        begin = time.monotonic()
        data = b""
        while piece := connection.recv(4096):
            data += piece
        assert time.monotonic() - begin < 5 * SLOWDOWN, name
        if name != "nothing":
            assert data.startswith(b"HTTP/1.1 408"), (name, data[:100])
        connection.close()
    assert cluster.get("/health/live").status == 200


def test_a_client_that_does_not_read_is_let_go(start):
    """The router neither waits for it nor keeps its answer for ever."""
    cluster = start({"router": {"http": {"write_timeout": "1s"}}})
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(cluster.address())
    body = b'{"model": "chat-6m", "prompt": [5, 6, 7], "max_tokens": 3500, "ignore_eos": true, "stream": true, "n": 4, ' \
        b'"logprobs": 20}'
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
    other = cluster.completion(prompt=[8, 9], max_tokens=8, ignore_eos=True)
    assert other["usage"]["completion_tokens"] == 8
    # Not before the kernel's buffers are full as well.
    wait_until(lambda: metric(cluster.metrics(), "tandem_router_slow_clients_total") == 1, 60, "a client given up")
    cluster.wait_idle(60)
    assert metric(cluster.metrics(), "tandem_router_client_disconnects_total") == 0
    connection.close()


@pytest.mark.parametrize("soft, hard, opened", [(128, 128, False), (128, 2048, True)])
def test_more_connections_than_open_files(soft, hard, opened, start):
    """The system's limit is raised as far as it goes; where it ends, the surplus is told so and the rest is served."""
    cluster = start(limits={resource.RLIMIT_NOFILE: (soft, hard)})
    kept = cluster.connection()
    kept.connect()
    idle, refused = [], 0
    for _ in range(200):
        idle.append(socket.create_connection(cluster.address(), timeout=10))
    for connection in idle:
        connection.settimeout(0.01)
        try:
            refused += connection.recv(100).startswith(b"HTTP/1.1 503")
        except TimeoutError:
            pass  # nobody refused it
        except OSError:
            pass
    assert (refused == 0) == opened
    kept.request("GET", "/health/live")
    begin = time.monotonic()
    assert kept.getresponse().status == 200
    assert time.monotonic() - begin < 3 * SLOWDOWN
    for connection in idle:
        connection.close()
    wait_until(lambda: cluster.get("/health/live").status == 200, 10, "room again")
    assert cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4


def test_a_full_queue_says_429_and_recovers(start):
    cluster = start({"router": {"admission": {"prefill_queue": 1, "decode_queue": 1}}, "prefill": [{"threads": 1, "max_sequences": 1}],
                     "decode": [{"threads": 1, "max_sequences": 1, "queue": 1}]})
    streams = [long_answer(cluster, 300) for _ in range(1)]
    results = []

    def one():
        results.append(cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": PROMPT, "max_tokens": 100,
                                                        "ignore_eos": True}, timeout=120))
    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [r for r in results if r.status != 200]
    assert refused, "twelve at once into queues of one"
    for response in refused:
        assert response.status in (429, 503)
        assert int(response.headers["retry-after"]) >= 1
        assert response.json["error"]["message"]
    for stream in streams:
        list(stream.events())
        assert stream.done
    assert cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
    cluster.wait_idle()
    rejected = sum(r.status == 429 for r in refused)
    requests = cluster.status()["requests"]
    assert (requests["rejected"], requests["failed"]) == (rejected, len(refused) - rejected)
    told = harness.tandem("status", "--url", cluster.url).stdout
    assert f"{len(refused) - rejected} failed, {rejected} rejected" in told, told


def test_a_full_kv_pool_queues_and_never_crashes(start):
    cluster = start({"kv": {"blocks": 40}, "router": {"admission": {"deadline": "30s"}}})
    results = []

    def one(number):
        results.append(cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": [(7 * number + i) % 4000 for i in range(150)],
                                                        "max_tokens": 60, "ignore_eos": True}, timeout=120))
    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = [r.status for r in results]
    assert set(statuses) <= {200, 429, 503} and statuses.count(200) >= 2, statuses
    cluster.wait_idle()
    assert all(cluster.restarts(n) == 0 for n in ("router", "prefill-0", "decode-0"))


def test_drain_finishes_what_runs(start):
    cluster = start()
    stream = long_answer(cluster, 200)
    events = stream.events()
    text = text_of(next(events))
    stopper = threading.Thread(target=lambda: os.kill(cluster.process.pid, signal.SIGTERM))
    stopper.start()
    text += "".join(map(text_of, events))
    assert stream.done, "the router drains before the nodes stop"
    stopper.join()
    assert cluster.process.wait(40 * SLOWDOWN) == 0


def test_a_hangup_disturbs_nobody_without_a_terminal(start):
    cluster = start()
    stream = long_answer(cluster, 200)
    events = stream.events()
    text = text_of(next(events))
    os.kill(cluster.process.pid, signal.SIGHUP)  # as after `nohup tandem up`
    for name in ("router", "prefill-0", "decode-0"):
        cluster.kill(name, signal.SIGHUP)
    text += "".join(map(text_of, events))
    assert stream.done and text
    stream = long_answer(cluster, 20)
    assert stream.text() and stream.done
    assert cluster.process.poll() is None
    assert all(cluster.restarts(name) == 0 for name in ("router", "prefill-0", "decode-0"))
    # Nor did a library begin to trace: a node says little about two requests.
    assert len((cluster.run_dir / "decode-0.log").read_bytes()) < 20_000


def test_a_terminal_that_closes_stops_what_it_started(tmp_path):
    cluster = harness.Cluster(tmp_path)
    ours, theirs = pty.openpty()
    cluster.launch(stderr=theirs)
    os.close(theirs)
    cluster.wait_ready()
    pids = [cluster.pid(name) for name in ("router", "prefill-0", "decode-0")]
    cluster.process.send_signal(signal.SIGHUP)
    assert cluster.process.wait(40 * SLOWDOWN) == 0
    os.close(ours)
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_second_signal_cuts_the_routers_drain_short(start):
    cluster = start({"router": {"drain_timeout": "1h"}})
    old = cluster.pid("router")
    stream = long_answer(cluster, 3500)
    next(iter(stream.events()))
    cluster.kill("router", signal.SIGTERM)
    wait_until(lambda: "draining" in (cluster.run_dir / "router.log").read_text(), 20, "a router that drains")
    cluster.kill("router", signal.SIGTERM)
    last = list(stream.events())[-1]
    assert not stream.done and last["error"]["code"] == "unavailable", last
    wait_until(lambda: cluster.pid("router") not in (0, old), 20, "a new router process")
    cluster.wait_ready()
    stream.close()
    cluster.wait_idle()


@pytest.mark.parametrize("first, second", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM)])
def test_a_second_signal_to_the_supervisor_still_tells_clients(first, second, start):
    cluster = start({"router": {"drain_timeout": "1h"}})
    stream = long_answer(cluster, 3500)
    next(iter(stream.events()))
    os.kill(cluster.process.pid, first)
    wait_until(lambda: "draining" in (cluster.run_dir / "router.log").read_text(), 20, "a router that drains")
    os.kill(cluster.process.pid, second)
    last = list(stream.events())[-1]
    assert not stream.done and last["error"]["code"] == "unavailable", last
    assert cluster.process.wait(20 * SLOWDOWN) == 0


def test_down_stops_a_detached_cluster(tmp_path):
    cluster = harness.Cluster(tmp_path)
    run = harness.tandem("up", "--detach", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env)
    assert "ready: API http://127.0.0.1:" in run.stderr
    pids = [p["pid"] for p in cluster.state()["processes"]]
    again = harness.tandem("up", "--detach", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert again.returncode == 1 and "already running" in again.stderr
    table = harness.tandem("status", "--run-dir", cluster.run_dir).stdout
    for word in ("prefill-0", "decode-0", "ready", "ucx"):
        assert word in table
    harness.tandem("down", "--run-dir", cluster.run_dir)
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")
    harness.tandem("down", "--run-dir", cluster.run_dir)  # nothing left is no error


def test_a_cluster_in_two_parts_comes_up_in_either_order(start, tmp_path):
    """A box with the router alone is up when it listens; a box with nodes alone when the router has taken them."""
    router = start({"prefill": [], "decode": []})
    assert router.get("/health/live").status == 200 and router.get("/health/ready").status == 503
    _, control = router.address("router", "control")
    nodes = harness.Cluster(tmp_path / "nodes", {"router": {"enabled": False, "control": {"port": control}}})
    run = harness.tandem("up", "--detach", nodes.config_path, "--run-dir", nodes.run_dir, env=nodes.env)
    try:
        assert "ready; logs in" in run.stderr
        assert router.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
        old = router.pid("router")
        router.kill("router")
        wait_until(lambda: router.pid("router") not in (0, old), 20, "a new router process")
        router.wait_ready()
        router.wait_nodes(2)
    finally:
        harness.tandem("down", "--run-dir", nodes.run_dir)
    wait_until(lambda: router.get("/health/ready").status == 503, 20, "a router without nodes")


def test_a_config_that_no_role_can_use_fails_at_once(tmp_path):
    cluster = harness.Cluster(tmp_path, {"model": {"path": str(tmp_path / "absent")}})
    run = harness.tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert run.returncode != 0
    assert "absent" in run.stderr


@pytest.mark.parametrize("change, fragments", [
    ({"kv": {"formatt": "int8"}}, ["kv.formatt", "kv.format"]),
    ({"kv": {"memory": "64"}}, ["kv.memory", "unit"]),
    ({"router": {"http": {"idle_timeout": 5}}}, ["router.http.idle_timeout"]),
    ({"router": {"http": {"port": 70000}}}, ["router.http.port", "65535"]),
])
def test_wrong_configuration_is_named(change, fragments, tmp_path):
    cluster = harness.Cluster(tmp_path, change)
    run = harness.tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert run.returncode == 2
    for fragment in fragments + ["cluster.yaml"]:
        assert fragment in run.stderr


def test_nodes_of_different_kv_formats_are_not_joined(start, tmp_path):
    """The handshake refuses what would give nonsense, and says what differs."""
    cluster = start()
    _, control = cluster.address("router", "control")
    config = harness.merge(cluster.config, {"kv": {"format": "k8v4"}, "router": {"enabled": False, "control": {"port": control}},
                                            "prefill": [], "decode": [{"name": "stranger", "router": f"127.0.0.1:{control}"}]})
    path = tmp_path / "stranger.yaml"
    path.write_text(json.dumps(config))
    log = open(tmp_path / "stranger.log", "wb")
    process = subprocess.Popen([str(harness.BIN / "tandem-decode"), "--config", str(path), "--name", "stranger", "--run-dir",
                                str(tmp_path)], stdout=log, stderr=log, env=cluster.env)
    try:
        wait_until(lambda: b"k8v4" in (tmp_path / "stranger.log").read_bytes() and b"refused" in
                   (tmp_path / "stranger.log").read_bytes(), 30, "a refusal that names the format")
        assert all(n["id"] != "stranger" or n["state"] != "ready" for n in cluster.status()["nodes"])
        assert metric(cluster.metrics(), "tandem_router_handshakes_refused_total") >= 1
    finally:
        process.terminate()
        process.wait(20 * SLOWDOWN)
        log.close()


@pytest.mark.parametrize("when", ["starting", "answering"])
def test_a_killed_supervisor_leaves_nothing_running(tmp_path, when):
    cluster = harness.Cluster(tmp_path)
    cluster.launch()

    def all_started():
        state = cluster.state()
        pids = [p["pid"] for p in state["processes"]] if state else []
        return pids if len(pids) == 3 and all(pids) else None

    roles = []
    try:
        roles = wait_until(all_started, 30, "three processes")
        if when == "answering":
            cluster.wait_ready()
            next(iter(long_answer(cluster, 2000).events()))
        cluster.process.kill()
        cluster.process.wait()
        wait_until(lambda: not any(map(is_alive, roles)), 40, "every role gone")
    finally:
        for pid in filter(is_alive, roles):
            os.kill(pid, signal.SIGKILL)
        cluster.stop()
    cluster.check_sanitizers()


@pytest.mark.parametrize("command, hangs", [("down", False), ("up", False), ("down", True)])
def test_what_a_killed_supervisor_left_can_be_stopped(command, hangs, tmp_path):
    """Roles that outlive it, for a moment or for good: `down` and the next `up` of the run directory end them."""
    cluster = harness.Cluster(tmp_path, {"router": {"drain_timeout": "5s"}, "decode": [{"threads": 1, "drain_timeout": "5s"}],
                                         "prefill": [{"threads": 1, "drain_timeout": "5s"}]})
    cluster.launch()
    cluster.wait_ready()
    streams = [long_answer(cluster, 3500) for _ in range(4)]
    next(iter(streams[0].events()))
    roles = {name: cluster.pid(name) for name in ("router", "decode-0")}  # those that have something to drain
    try:
        cluster.process.kill()
        cluster.process.wait()
        for pid in roles.values():  # not before: the kernel wakes stopped processes whose parent dies
            os.kill(pid, signal.SIGSTOP)
        run = harness.tandem("status", "--run-dir", cluster.run_dir, check=False)
        assert run.returncode == 1 and "tandem down" in run.stderr, run.stderr
        arguments = ["up", "--detach", str(cluster.config_path)] if command == "up" else ["down"]
        process = subprocess.Popen([str(harness.BIN / "tandem"), *arguments, "--run-dir", str(cluster.run_dir)], env=cluster.env,
                                   stderr=subprocess.PIPE, text=True)
        told = process.stderr.readline()
        for pid in [] if hangs else roles.values():
            os.kill(pid, signal.SIGCONT)
        told += process.communicate(timeout=60 * SLOWDOWN)[1]
        assert process.returncode == 0, told
        assert not any(map(is_alive, roles.values()))
        for name, pid in roles.items():
            assert f"{name} (process {pid})" in told
        assert ("killing" in told) == hangs and ("ready: API" in told) == (command == "up")
    finally:
        for stream in streams:
            stream.close()
        harness.tandem("down", "--run-dir", cluster.run_dir)
        for pid in filter(is_alive, roles.values()):
            os.kill(pid, signal.SIGKILL)
        cluster.stop()


def test_down_ends_nobody_elses_process(tmp_path):
    """The number in an old supervisor.json may be another process's by now."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        (run_dir / "supervisor.json").write_text(json.dumps({"config": "x", "url": "", "stop_seconds": 1, "processes": [
            {"name": "router", "role": "router", "pid": stranger.pid, "state": "ready", "restarts": 0}]}))
        run = harness.tandem("down", "--run-dir", run_dir)
        assert "nothing is running" in run.stderr and stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
