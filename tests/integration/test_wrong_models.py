"""Files and folders that are no model: every program says why, and that trying again does not help."""
import subprocess

import pytest

import harness
from harness import CHAT_MODEL, tandem


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


def folder_cut_short(path):
    path.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((CHAT_MODEL / name).read_bytes())
    (path / "model.safetensors").write_bytes((CHAT_MODEL / "model.safetensors").read_bytes()[:100_000])
    return path


WITHOUT_WEIGHTS = [(folder_without_config, "config.json"), (file_that_is_no_gguf, "GGUF"), (folder_of_another_kind, "GPTNeoX")]
MODELS = [*WITHOUT_WEIGHTS, (folder_cut_short, "model.safetensors")]


def users_of_models(*names, without_weights):
    """(program or command, maker, fragment): those that read no weights miss no weights."""
    return [(name, *model) for name in names for model in (WITHOUT_WEIGHTS if name == without_weights else MODELS)]


@pytest.mark.parametrize("make, fragment", MODELS)
def test_up_ends_at_once(make, fragment, tmp_path):
    cluster = harness.Cluster(tmp_path / "c", {"model": {"path": str(make(tmp_path / "model"))}})
    run = tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert run.returncode == 2, run.stderr
    assert "started, process" not in run.stderr
    assert fragment in run.stderr and "model" in run.stderr


@pytest.mark.parametrize("program, make, fragment", users_of_models("tandem-router", "tandem-prefill", "tandem-decode",
                                                                    without_weights="tandem-router"))
def test_a_role_by_itself_ends_at_once(program, make, fragment, tmp_path):
    cluster = harness.Cluster(tmp_path / "c", {"model": {"path": str(make(tmp_path / "model"))}})
    run = subprocess.run([str(harness.BIN / program), "--config", str(cluster.config_path)], env=cluster.env, capture_output=True,
                         text=True, timeout=60 * harness.SLOWDOWN)
    assert run.returncode == 2, run.stderr
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(program) and fragment in last, run.stderr


@pytest.mark.parametrize("command, make, fragment", users_of_models("generate", "eval", "tokenize", without_weights="tokenize"))
def test_commands_without_a_cluster_call_it_a_wrong_argument(command, make, fragment, tmp_path):
    chats = tmp_path / "data.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    arguments = {"generate": ["--ids", "1"], "eval": ["--data", chats], "tokenize": ["--text", "x"]}[command]
    run = tandem(command, make(tmp_path / "model"), *arguments, check=False)
    assert run.returncode == 2 and run.stdout == "", run.stderr
    assert run.stderr.startswith(f"tandem {command}: ") and fragment in run.stderr
