"""How a cluster stops: what drains, what signals do, and what a killed supervisor leaves."""
import contextlib
import json
import os
import pathlib
import pty
import signal
import subprocess
import threading
import time

import pytest

import harness
from harness import SLOWDOWN, is_alive, text_of, wait_until


def test_drain_finishes_what_runs(start):
    cluster = start()
    stream = cluster.long_answer(200)
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
    stream = cluster.long_answer(200)
    events = stream.events()
    text = text_of(next(events))
    os.kill(cluster.process.pid, signal.SIGHUP)  # as after `nohup tandem up`
    for name in ("router", "prefill-0", "decode-0"):
        cluster.kill(name, signal.SIGHUP)
    text += "".join(map(text_of, events))
    assert stream.done and text
    stream = cluster.long_answer(20)
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
    stream = cluster.long_answer(3500)
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
    stream = cluster.long_answer(3500)
    next(iter(stream.events()))
    os.kill(cluster.process.pid, first)
    wait_until(lambda: "draining" in (cluster.run_dir / "router.log").read_text(), 20, "a router that drains")
    os.kill(cluster.process.pid, second)
    last = list(stream.events())[-1]
    assert not stream.done and last["error"]["code"] == "unavailable", last
    assert cluster.process.wait(20 * SLOWDOWN) == 0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_third_signal_to_the_supervisor_ends_everything_at_once(sent, tmp_path):
    cluster = harness.Cluster(tmp_path, {"router": {"drain_timeout": "1h"}, "decode": [{"threads": 1, "drain_timeout": "1h"}]})
    cluster.launch()
    cluster.wait_ready()
    roles = {name: cluster.pid(name) for name in ("router", "prefill-0", "decode-0")}
    for pid in roles.values():
        os.kill(pid, signal.SIGSTOP)  # takes no signal any more
    log = cluster.folder / "up.log"
    cluster.process.send_signal(sent)
    for words in ("cutting the drain short", "killing what is left"):
        time.sleep(0.2)  # equal signals that nobody has taken yet are one
        cluster.process.send_signal(sent)
        wait_until(lambda: words in log.read_text(), 20, words)
    assert cluster.process.wait(20 * SLOWDOWN) == 0
    cluster.log.close()
    assert log.read_text().count("signal 9") == 3, log.read_text()
    assert not any(map(is_alive, roles.values()))
    assert not list(cluster.run_dir.glob("*.json"))


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
            next(iter(cluster.long_answer(2000).events()))
        cluster.process.kill()
        cluster.process.wait()
        wait_until(lambda: not any(map(is_alive, roles)), 40, "every role gone")
    finally:
        for pid in filter(is_alive, roles):
            os.kill(pid, signal.SIGKILL)
        cluster.stop()
    cluster.check_sanitizers()


@contextlib.contextmanager
def left_behind(tmp_path):
    """A cluster whose supervisor was killed, and the two of its roles (name: pid) that have something to drain, stopped."""
    cluster = harness.Cluster(tmp_path, {"router": {"drain_timeout": "5s"}, "decode": [{"threads": 1, "drain_timeout": "5s"}],
                                         "prefill": [{"threads": 1, "drain_timeout": "5s"}]})
    cluster.launch()
    cluster.wait_ready()
    streams = [cluster.long_answer(3500) for _ in range(4)]
    next(iter(streams[0].events()))
    roles = {name: cluster.pid(name) for name in ("router", "decode-0")}
    try:
        cluster.process.kill()
        cluster.process.wait()
        for pid in roles.values():  # not before: the kernel wakes stopped processes whose parent dies
            os.kill(pid, signal.SIGSTOP)
        yield cluster, roles
    finally:
        for stream in streams:
            stream.close()
        harness.tandem("down", "--run-dir", cluster.run_dir)
        for pid in filter(is_alive, roles.values()):
            os.kill(pid, signal.SIGKILL)
        cluster.stop()


@pytest.mark.parametrize("command, hangs", [("down", False), ("up", False), ("down", True)])
def test_what_a_killed_supervisor_left_can_be_stopped(command, hangs, tmp_path):
    """Roles that outlive it, for a moment or for good: `down` and the next `up` of the run directory end them."""
    with left_behind(tmp_path) as (cluster, roles):
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


def test_what_a_killed_supervisor_of_another_file_left_is_not_ended_by_the_way(tmp_path):
    with left_behind(tmp_path) as (cluster, roles):
        other = tmp_path / "other.yaml"
        other.write_text(cluster.config_path.read_text())
        for command in (["up", other], ["down", "--config", other]):
            run = harness.tandem(*command, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
            assert run.returncode == 1 and f"a cluster of {cluster.config_path} still runs" in run.stderr, run.stderr
            assert "tandem down" in run.stderr and "--run-dir" in run.stderr
            for name, pid in roles.items():
                assert f"{name} (process {pid})" in run.stderr and is_alive(pid)
        for pid in roles.values():
            os.kill(pid, signal.SIGCONT)
        harness.tandem("down", "--config", cluster.config_path, "--run-dir", cluster.run_dir)
        assert not any(map(is_alive, roles.values()))


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
