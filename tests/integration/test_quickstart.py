"""./quickstart.sh on a tree that is built already."""
import re
import shutil
import socket
import subprocess

import pytest

import harness

pytestmark = pytest.mark.skipif(harness.SANITIZED or harness.BIN != (harness.ROOT / "build/release/bin").resolve(),
                                reason="quickstart.sh uses build/release")


def quickstart(tmp_path, *arguments, timeout=600):
    run_dir = tmp_path / "xdg"
    run_dir.mkdir(exist_ok=True)
    return subprocess.run([str(harness.ROOT / "quickstart.sh"), *arguments], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env=harness.environment(XDG_RUNTIME_DIR=run_dir))


def test_it_answers_and_reports(tmp_path):
    run = quickstart(tmp_path, "--model", str(harness.CHAT_MODEL))
    assert run.returncode == 0, run.stderr[-3000:]
    for wanted in (r"time to first token +\d+ ms", r"between tokens +[\d.]+ ms", r"tokens per second +[\d.]+", r"raw, .* on the wire",
                   r"transport +ucx", r"API +http://", r"status page +http://"):
        assert re.search(wanted, run.stdout), (wanted, run.stdout)
    assert "not connected" not in run.stdout, "the first transfer already names what it took"
    assert "[6/6]" in run.stderr
    assert not (tmp_path / "xdg/tandem/supervisor.json").exists(), "it stops what it started"


def test_keep_leaves_it_running_beside_busy_ports(tmp_path):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 8000))
            other.listen()
        except OSError:
            pass  # somebody else has it: as good
        run = quickstart(tmp_path, "--model", str(harness.CHAT_MODEL), "--keep")
    assert run.returncode == 0, run.stderr[-3000:]
    assert "port 8000 is in use" in run.stderr
    environment = harness.environment(XDG_RUNTIME_DIR=tmp_path / "xdg")
    try:
        assert "decode-0" in harness.tandem("status", env=environment).stdout
    finally:
        harness.tandem("down", env=environment)
    assert "no cluster runs" in harness.tandem("status", env=environment, check=False).stderr


def test_it_stops_no_other_cluster_than_its_own(tmp_path):
    (tmp_path / "xdg").mkdir()
    environment = harness.environment(XDG_RUNTIME_DIR=tmp_path / "xdg", TANDEM_ROUTER_HTTP_PORT=0, TANDEM_ROUTER_CONTROL_PORT=0,
                                      TANDEM_MODEL_PATH=harness.CHAT_MODEL)
    own = tmp_path / "own.yaml"
    shutil.copy(harness.ROOT / "deploy/quickstart.yaml", own)
    try:
        harness.tandem("up", "--detach", "own.yaml", env=environment, cwd=tmp_path)
        run = quickstart(tmp_path, "--model", str(harness.CHAT_MODEL))
        assert run.returncode == 1 and run.stdout == "", run.stderr[-3000:]
        assert f"is of {own}, not of deploy/quickstart.yaml" in run.stderr
        assert "tandem down" in run.stderr and "--run-dir" in run.stderr and "[5/6]" not in run.stderr
        assert "decode-0" in harness.tandem("status", env=environment).stdout, "it still runs"
        harness.tandem("down", "--config", own, env=environment)

        harness.tandem("up", "--detach", harness.ROOT / "deploy/quickstart.yaml", env=environment)
        run = quickstart(tmp_path, "--model", str(harness.CHAT_MODEL))
        assert run.returncode == 0, run.stderr[-3000:]
        assert "stopped the cluster that an earlier run left" in run.stderr
    finally:
        harness.tandem("down", env=environment)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--model"], ["--model", "/nowhere"]])
def test_wrong_arguments(arguments, tmp_path):
    run = quickstart(tmp_path, *arguments)
    assert run.returncode == 2 and run.stdout == ""
