"""What `tandem up` says and does while roles start: what cannot work, what was interrupted, what waits for another box."""
import contextlib
import socket
import subprocess

import pytest

import harness
from harness import tandem


def up(cluster, *arguments, **kwargs):
    return tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, *arguments, env=cluster.env, check=False, **kwargs)


@contextlib.contextmanager
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def folder_without_config(path):
    path.mkdir()
    (path / "notes.txt").write_text("no model")
    return path


def file_that_is_no_gguf(path):
    path = path.with_suffix(".gguf")
    path.write_bytes(b"not a model" * 100)
    return path


def folder_of_another_kind(path):
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}')
    return path


@pytest.mark.parametrize("make, fragment", [(folder_without_config, "config.json"), (file_that_is_no_gguf, "GGUF"),
                                            (folder_of_another_kind, "GPTNeoX")])
def test_a_model_that_is_none_ends_up_at_once(make, fragment, tmp_path):
    cluster = harness.Cluster(tmp_path / "c", {"model": {"path": str(make(tmp_path / "model"))}})
    run = up(cluster)
    assert run.returncode == 2, run.stderr
    assert "started, process" not in run.stderr
    assert fragment in run.stderr and "model" in run.stderr


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
