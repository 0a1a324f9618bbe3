"""What `tandem up` refuses before anything starts, `tandem doctor --config` tells in the same words."""
import json
import socket
import subprocess

import pytest

import harness
from harness import CHAT_MODEL, tandem

ANYWHERE = {"http": {"port": 0}, "control": {"port": 0}}


def write(folder, **sections):
    path = folder / "cluster.yaml"
    path.write_text(json.dumps({"model": {"path": str(CHAT_MODEL)}, "router": ANYWHERE, **sections}))
    return path


def doctor(path, **options):
    run = tandem("doctor", "--json", "--config", path, check=False, **options)
    return run.returncode, [f for f in json.loads(run.stdout)["findings"] if "key" in f]


REFUSED = {
    "decode[0].cpus": {"decode": [{"cpus": [1023]}]},
    "decode[0].transport.kind": {"decode": [{"transport": {"kind": "nccl"}}]},
    "prefill[0].transport.kind": {"prefill": [{"transport": {"kind": "inproc"}}]},
    "decode[0].transport.ucx_tls": {"decode": [{"transport": {"ucx_tls": "bogus"}}]},
    "decode[0].kv_memory": {"decode": [{"kv_memory": "15TiB"}]},
    "kv.memory": {"kv": {"memory": "4KiB"}},
    "log.file": {"log": {"file": "/proc/nowhere/tandem.log"}},
    "model.path": {"model": {"path": "/proc"}},
    "router.http.tls.certificate": {"router": {"http": {"port": 0, "tls": {"certificate": str(CHAT_MODEL / "config.json"),
                                                                             "key": str(CHAT_MODEL / "config.json")}},
                                               "control": {"port": 0}}},
}


@pytest.mark.parametrize("key", REFUSED)
def test_up_refuses_before_anything_starts_what_doctor_finds(key, tmp_path):
    path = write(tmp_path, **REFUSED[key])
    code, findings = doctor(path)
    problems = [f for f in findings if f["severity"] == "problem"]
    assert code == 1 and {f["key"] for f in problems} == {key}
    assert all(f["reason"] and f["origin"] == f"{path}:1" for f in problems)
    run = tandem("up", path, "--run-dir", tmp_path / "run", check=False)
    assert run.returncode == 2
    assert all(f["text"] in run.stderr for f in problems), run.stderr
    assert "started, process" not in run.stderr
    assert not list((tmp_path / "run").glob("*.log"))


@pytest.mark.parametrize("key", [key for key in REFUSED if not key.startswith(("prefill", "router"))])
def test_a_role_refuses_by_itself_in_the_same_words(key, tmp_path):
    path = write(tmp_path, **REFUSED[key])
    reasons = [f["reason"] for f in doctor(path)[1] if f["key"] == key]
    run = subprocess.run([harness.BIN / "tandem-decode", "--config", path], env=harness.environment(), capture_output=True, text=True,
                         timeout=60 * harness.SLOWDOWN)
    assert run.returncode == 2, run.stderr
    assert any(reason in run.stderr.splitlines()[-1] for reason in reasons), (reasons, run.stderr)


def test_busy_ports_are_told_with_key_and_variable(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = write(tmp_path, router={"http": {"port": port}, "control": {"port": 0}})
        code, findings = doctor(path)
        assert code == 1
        assert [(f["key"], f["value"]) for f in findings] == [("router.http.port", str(port))]
        assert "TANDEM_ROUTER_HTTP_PORT" in findings[0]["remedy"]
        run = tandem("up", path, "--run-dir", tmp_path / "run", check=False)
        assert run.returncode != 0 and "TANDEM_ROUTER_HTTP_PORT" in run.stderr
        # As the variable is what counts in `up`, so it is here.
        code, findings = doctor(path, env=harness.environment(TANDEM_ROUTER_HTTP_PORT="0"))
        assert code == 0 and findings == []


def test_a_file_that_is_no_cluster_file_is_told_in_json_too(tmp_path):
    path = tmp_path / "cluster.yaml"
    for text, told in [("decode: [{device: gpu}]\nmodel: {path: .}\n", ":1: decode[0].device: 'gpu' is not a device"),
                       ("", "model.path: is required"), ("model: [", "")]:
        path.write_text(text)
        for config in (path, tmp_path):
            code, findings = doctor(config)
            assert code == 2
            assert findings and all(f["severity"] == "problem" for f in findings)
        code, findings = doctor(path)
        assert any(told in f["text"] for f in findings), findings


def test_what_only_works_less_well_starts_and_is_told(tmp_path):
    path = write(tmp_path, gpu={"libraries": ["nowhere"]}, decode=[{"threads": 1}], prefill=[])
    code, findings = doctor(path)
    assert code == 0
    assert [(f["severity"], f["key"]) for f in findings] == [("warning", "gpu.libraries")]
    assert str(tmp_path / "nowhere") in findings[0]["reason"]  # counted from the file's folder
    run_dir = tmp_path / "run"
    run = tandem("up", path, "--run-dir", run_dir, "--detach", check=False)
    try:
        assert run.returncode == 0 and f"warning: {findings[0]['text']}" in run.stderr, run.stderr
        # Its own ports are nobody else's.
        endpoint = json.loads((run_dir / "router.json").read_text())["endpoints"]["http"]
        env = harness.environment(TANDEM_ROUTER_HTTP_PORT=endpoint.rpartition(":")[2])
        assert doctor(path, env=env)[0] == 1
        text = tandem("doctor", "--config", path, "--run-dir", run_dir, env=env).stdout
        assert "note: this cluster runs (process " in text
    finally:
        tandem("down", "--run-dir", run_dir, check=False)
