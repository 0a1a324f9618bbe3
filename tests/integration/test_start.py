"""What `tandem up` says and does while roles start: what cannot work, what was interrupted, what waits for another box."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

import harness
from harness import PROMPT, SLOWDOWN, is_alive, metric, tandem, wait_until


OTHER_MODEL = harness.ROOT / "models/chat-6m-draft"


def up(cluster, *arguments, **kwargs):
    return tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, *arguments, env=cluster.env, check=False, **kwargs)


@contextlib.contextmanager
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def reserved_port():
    """Nobody listens there, nobody gets it as any free port, and who names it may listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize("change, fragments", [
    ({"decode": [{"cpus": [65000]}]}, ["65000"]),
    ({"decode": [{"metrics": {"host": "no.such.host.invalid"}}]}, ["no.such.host.invalid", "decode[0].metrics.host"]),
    ({"router": {"http": {"host": "203.0.113.7"}}}, ["203.0.113.7", "router.http.host", "TANDEM_ROUTER_HTTP_HOST"]),
])
def test_values_that_cannot_work_here_end_up_at_once(change, fragments, tmp_path):
    run = up(harness.Cluster(tmp_path, change))
    assert run.returncode == 2, run.stderr
    assert "started, process" not in run.stderr
    for fragment in fragments:
        assert fragment in run.stderr


@pytest.mark.parametrize("program, key, arguments", [
    ("tandem-router", "router.http.port", []), ("tandem-router", "router.control.port", []),
    ("tandem-prefill", "prefill[1].metrics.port", ["--name", "other"]), ("tandem-decode", "decode[0].metrics.port", []),
])
def test_a_role_names_the_key_of_a_busy_port(program, key, arguments, tmp_path):
    with busy_port() as port:
        change = {"prefill": [{"name": "first"}, {"name": "other"}], "decode": [{}]}
        part, _, rest = key.partition(".")
        if part == "router":
            change["router"] = {rest.split(".")[0]: {"port": port}}
        else:
            role, number = part.rstrip("]").split("[")
            change[role][int(number)]["metrics"] = {"port": port}
        cluster = harness.Cluster(tmp_path, change)
        run = subprocess.run([str(harness.BIN / program), "--config", str(cluster.config_path), *arguments], env=cluster.env,
                             capture_output=True, text=True, timeout=60 * harness.SLOWDOWN)
    variable = "TANDEM_" + key.upper().replace("[", "_").replace("]", "").replace(".", "_")
    assert run.returncode == 2, run.stderr
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(program) and str(port) in last and key in last and variable in last


def test_every_busy_port_of_a_file_is_named_before_anything_starts(tmp_path):
    with busy_port() as http, busy_port() as control, busy_port() as metrics:
        cluster = harness.Cluster(tmp_path, {"router": {"http": {"port": http}, "control": {"port": control}},
                                             "decode": [{}, {"metrics": {"port": metrics}}]})
        run = up(cluster)
    assert run.returncode == 2 and "started" not in run.stderr, run.stderr
    lines = run.stderr.splitlines()
    for key, port in (("router.http.port", http), ("router.control.port", control), ("decode[1].metrics.port", metrics)):
        variable = "TANDEM_" + key.upper().replace("[", "_").replace("]", "").replace(".", "_")
        assert any(key in line and str(port) in line and variable in line for line in lines), run.stderr


class Detached:
    """`tandem up --detach` as a process of its own, with what it prints."""

    def __init__(self, cluster, *arguments):
        self.cluster = cluster
        self.process = subprocess.Popen([str(harness.BIN / "tandem"), "up", "--detach", str(cluster.config_path), "--run-dir",
                                         str(cluster.run_dir), *arguments], env=cluster.env, stderr=subprocess.PIPE, text=True,
                                        stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_for_roles(self, count):
        return wait_until(lambda: running_roles(self.cluster, count), 30, f"{count} processes")

    def end(self):
        text = self.process.communicate(timeout=60 * SLOWDOWN)[1]
        return self.process.returncode, text


def running_roles(cluster, count):
    state = cluster.state()
    pids = [p["pid"] for p in state["processes"]] if state else []
    return pids if len(pids) == count and all(pids) else None


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    """A router on "another box"."""
    with harness.Cluster(tmp_path_factory.mktemp("router"), {"prefill": [], "decode": []}) as cluster:
        yield cluster


def nodes_only(tmp_path, control, **changes):
    return harness.Cluster(tmp_path, harness.merge({"router": {"enabled": False, "control": {"port": control}}, "prefill": [],
                                                    "decode": [{"name": "stranger", "threads": 1}]}, changes))


def control_of(router):
    return router.address("router", "control")[1]


def refused_nodes(cluster, tmp_path):
    """A start that does not end: a node of another KV format than the cluster's."""
    return nodes_only(tmp_path, control_of(cluster), kv={"format": "k8v4"})


@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("detach", [True, False])
def test_a_signal_stops_a_start_that_is_not_ready(sent, code, detach, cluster, tmp_path):
    nodes = refused_nodes(cluster, tmp_path)
    pids = []
    try:
        if detach:
            run = Detached(nodes)
            pids = run.wait_for_roles(1)
            wait_until(lambda: "refused" in (nodes.run_dir / "stranger.log").read_text(), 30, "a refused node")
            run.process.send_signal(sent)
            returned, text = run.end()
            assert "interrupted" in text
        else:
            nodes.launch()
            pids = wait_until(lambda: running_roles(nodes, 1), 30, "a process")
            wait_until(lambda: "refused" in (nodes.run_dir / "stranger.log").read_text(), 30, "a refused node")
            nodes.process.send_signal(sent)
            returned = nodes.process.wait(60 * SLOWDOWN)
        assert returned == code
        assert not any(map(is_alive, pids))
        assert nodes.state() is None
    finally:
        tandem("down", "--run-dir", nodes.run_dir)
    if not detach:
        nodes.log.close()


def test_a_start_with_a_role_that_takes_no_signal_can_be_stopped(cluster, tmp_path):
    nodes = refused_nodes(cluster, tmp_path)
    run = Detached(nodes)
    pid, = run.wait_for_roles(1)
    wait_until(lambda: "refused" in (nodes.run_dir / "stranger.log").read_text(), 30, "a refused node")
    os.kill(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)  # an impatient user; need not arrive while the command is still there
    code, text = run.end()
    assert code == 130 and not is_alive(pid) and "signal 9" in text, text


def test_why_the_router_refuses_a_node_is_told_by_up(cluster, tmp_path):
    nodes = refused_nodes(cluster, tmp_path)
    run = Detached(nodes)
    line = next(line for line in run.process.stderr if "refused" in line)  # at once
    run.process.send_signal(signal.SIGTERM)
    code, rest = run.end()
    assert code == 143, line + rest
    assert "stranger" in line and "k8v4" in line and str(control_of(cluster)) in line, line + rest


def test_why_the_router_refuses_a_node_is_the_reason_of_a_start_that_times_out(cluster, tmp_path):
    nodes = refused_nodes(cluster, tmp_path)
    for seconds in (3, 12, 50, 200):  # of which a slow machine needs more than others until the refusal
        run = up(nodes, "--timeout", seconds)
        assert run.returncode == 1
        told, final = run.stderr.split("not ready after")
        if "refused" in told:
            break
    line = next(line for line in final.splitlines() if "stranger" in line and "refused" in line)
    assert "k8v4" in line and str(control_of(cluster)) in line, run.stderr


@pytest.mark.parametrize("detach", [True, False])
def test_a_node_that_is_refused_for_good_ends_up_at_once(detach, cluster, tmp_path):
    """A model is loaded once: no waiting makes it the router's."""
    nodes = nodes_only(tmp_path, control_of(cluster), model={"path": str(OTHER_MODEL)})
    begin = time.monotonic()
    run = up(nodes, "--timeout", 1000 * SLOWDOWN, *["--detach"] * detach)
    assert time.monotonic() - begin < 60 * SLOWDOWN and run.returncode == 2, run.stderr
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("tandem up: stranger refused by the router at ") and "the same model files" in last, run.stderr
    assert "stopped" in run.stderr and "goes on trying" not in run.stderr and nodes.state() is None


def test_a_wrong_shared_key_is_told_by_up(start, tmp_path):
    guarded = start({"prefill": [], "decode": [], "router": {"control": {"shared_key": "correct-horse"}}})
    for key, words in (("wrong-battery", "key"), (None, "shared key")):
        control = {"shared_key": key} if key else {}
        run = up(nodes_only(tmp_path / f"{len(words)}", control_of(guarded), router={"control": control}))
        last = run.stderr.strip().splitlines()[-1]
        assert run.returncode == 2 and "stranger" in last and words in last
        assert "battery" not in run.stderr and "horse" not in run.stderr


def test_a_node_that_was_let_go_to_wait_goes_on_trying_whatever_its_router_says(reserved_port, tmp_path):
    nodes = nodes_only(tmp_path / "nodes", reserved_port, model={"path": str(OTHER_MODEL)})
    try:
        assert up(nodes, "--detach").returncode == 0
        with harness.Cluster(tmp_path / "router", {"prefill": [], "decode": [], "router": {"control": {"port": reserved_port}}}):
            wait_until(lambda: "it goes on trying" in (nodes.run_dir / "supervisor.log").read_text(), 30, "a refusal")
            assert nodes.state()["processes"][0]["state"] == "starting" and is_alive(nodes.pid("stranger"))
    finally:
        tandem("down", "--run-dir", nodes.run_dir)


def test_nodes_alone_wait_for_a_router_that_is_not_there_yet(reserved_port, tmp_path):
    control = reserved_port
    nodes = nodes_only(tmp_path / "nodes", control)
    router = None
    try:
        run = up(nodes, "--detach")
        assert run.returncode == 0, run.stderr
        assert "not registered yet" in run.stderr and f"127.0.0.1:{control}" in run.stderr
        text = tandem("status", "--run-dir", nodes.run_dir, check=False)
        assert text.returncode == 1 and "stranger" in text.stdout and f"cannot reach the router at 127.0.0.1:{control}" in text.stdout
        router = harness.Cluster(tmp_path / "router", {"prefill": [], "decode": [], "router": {"control": {"port": control}}})
        router.__enter__()
        wait_until(lambda: nodes.state()["processes"][0]["state"] == "ready", 30, "a node that registers")
        assert f"registered with the router at 127.0.0.1:{control}" in (nodes.run_dir / "supervisor.log").read_text()
    finally:
        tandem("down", "--run-dir", nodes.run_dir)
        if router:
            router.__exit__(None)


def test_status_of_a_box_with_nodes_alone(router, tmp_path):
    nodes = nodes_only(tmp_path, control_of(router))
    try:
        assert up(nodes, "--detach").returncode == 0
        host, port = nodes.address("stranger", "metrics")
        text = tandem("status", "--run-dir", nodes.run_dir).stdout
        for part in ("stranger", "decode", str(nodes.pid("stranger")), f"http://{host}:{port}",
                     f"registered with the router at 127.0.0.1:{control_of(router)}"):
            assert part in text, text
        told = json.loads(tandem("status", "--json", "--run-dir", nodes.run_dir).stdout)
        node, = told["processes"]
        assert told["ready"] and node["name"] == "stranger" and node["role"] == "decode" and node["state"] == "ready"
        assert node["pid"] == nodes.pid("stranger") and node["url"] == f"http://{host}:{port}"
        assert node["router"] == {"address": f"127.0.0.1:{control_of(router)}", "state": "registered", "reason": ""}
        for command in (["status", "--url-only"], ["chat", "--ask", "x"]):
            run = tandem(*command, "--run-dir", nodes.run_dir, check=False)
            assert run.returncode == 1 and "no router" in run.stderr and "--url" in run.stderr, run.stderr
    finally:
        tandem("down", "--run-dir", nodes.run_dir)


def test_status_fails_for_a_node_here_that_hangs_though_the_router_can_serve(start):
    cluster = start({})
    here = ["status", "--run-dir", cluster.run_dir]
    wait_until(lambda: tandem(*here, check=False).returncode == 0, 30, "a status without fault")
    os.kill(cluster.pid("prefill-0"), signal.SIGSTOP)
    try:
        for arguments in ([], ["--json"]):
            run = tandem(*here, *arguments, check=False)
            assert run.returncode == 1 and "decode-0" in run.stdout, run.stdout + run.stderr
        assert cluster.status()["ready"]
        tandem("status", "--url", cluster.url)
    finally:
        os.kill(cluster.pid("prefill-0"), signal.SIGCONT)
    wait_until(lambda: tandem(*here, check=False).returncode == 0, 30, "a status without fault again")


def test_a_router_without_nodes_is_not_called_ready(tmp_path):
    cluster = harness.Cluster(tmp_path, {"prefill": [], "decode": []})
    try:
        run = up(cluster, "--detach")
        assert run.returncode == 0
        assert "503" in run.stderr and str(cluster.address("router", "control")[1]) in run.stderr and "ready: API" not in run.stderr
    finally:
        tandem("down", "--run-dir", cluster.run_dir)


def test_a_crash_at_start_is_tried_again_and_quoted_alone(tmp_path):
    """What may pass is started again; the quoted lines are the last process's, in a log that keeps all."""
    script = tmp_path / "crash"
    script.write_text('#!/bin/sh\necho "attempt $TEST_RUN"\nkill -SEGV $$\n')
    script.chmod(0o755)
    programs = harness.programs_with(tmp_path / "bin", tandem_router=script)
    cluster = harness.Cluster(tmp_path / "c")
    for number in ("first", "second"):
        run = subprocess.run([str(programs / "tandem"), "up", str(cluster.config_path), "--run-dir", str(cluster.run_dir)],
                             env={**cluster.env, "TEST_RUN": number}, capture_output=True, text=True, timeout=60 * SLOWDOWN)
        assert run.returncode == 1 and run.stderr.count("started, process") == 3, run.stderr
        assert run.stderr.count("attempt") == 1 and f"attempt {number}" in run.stderr, run.stderr
    assert (cluster.run_dir / "router.log").read_text().count("attempt") == 6


def test_roles_that_end_for_good_together_leave_nothing_to_wait_for(tmp_path):
    """Both are reaped at once: the first one's error must not make the supervisor forget the second."""
    go = tmp_path / "go"
    script = tmp_path / "refuse"
    script.write_text(f'#!/bin/sh\nwhile [ ! -e "{go}" ]; do sleep 0.05; done\necho "nothing here can work"\nexit 2\n')
    script.chmod(0o755)
    programs = harness.programs_with(tmp_path / "bin", tandem_prefill=script, tandem_decode=script)
    nodes = nodes_only(tmp_path / "nodes", 1, prefill=[{"name": "other", "threads": 1}])
    process = subprocess.Popen([str(programs / "tandem"), "up", str(nodes.config_path), "--run-dir", str(nodes.run_dir)], env=nodes.env,
                               stderr=subprocess.PIPE, text=True)
    try:
        pids = wait_until(lambda: running_roles(nodes, 2), 30, "two roles")
        process.send_signal(signal.SIGSTOP)
        go.touch()
        wait_until(lambda: all("\nState:\tZ" in open(f"/proc/{pid}/status").read() for pid in pids), 30, "two roles that have ended")
        process.send_signal(signal.SIGCONT)
        text = process.communicate(timeout=30 * SLOWDOWN)[1]
        assert process.returncode == 2 and "nothing here can work" in text, text
    finally:
        process.kill()


def test_an_ipv6_router_is_named_by_a_url_that_clients_read(tmp_path):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 loopback here")
    with harness.Cluster(tmp_path, {"router": {"http": {"host": "::1"}, "control": {"host": "::1"}}}) as cluster:
        url = tandem("status", "--url-only", "--run-dir", cluster.run_dir).stdout.strip()
        assert url.startswith("http://[::1]:"), url
        with urllib.request.urlopen(url + "/health/ready", timeout=30 * SLOWDOWN) as answer:
            assert answer.status == 200
        assert tandem("status", "--run-dir", cluster.run_dir).stdout.count("ready") >= 3


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
