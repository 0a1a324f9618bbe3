"""tandem generate, tokenize and eval against the reference files, and what wrong arguments get."""
import array
import concurrent.futures
import json
import math
import os
import re
import stat
import struct
import subprocess

import pytest

import harness
from harness import CHAT_MODEL, GOLDEN, ROOT, SMOLLM2, tandem

needs_smollm2 = pytest.mark.skipif(not SMOLLM2, reason="TANDEM_SMOLLM2 is not set (scripts/fetch-smollm2.sh)")
FOLDERS = ["llama3", "qwen2", "qwen3", "qwen3_moe"]


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])

    def tensor(name):
        begin, end = header[name]["data_offsets"]
        values = array.array("f")
        values.frombytes(data[8 + size + begin:8 + size + end])
        return header[name]["shape"], values
    return tensor


def relative_l2(values, reference):
    difference = sum((a - b) ** 2 for a, b in zip(values, reference, strict=True))
    return math.sqrt(difference / sum(b * b for b in reference))


def golden(name):
    return json.loads((GOLDEN / name / "golden.json").read_text())


def generate_ids(model, ids, tmp_path, *arguments):
    path = tmp_path / "ids"
    path.write_text(" ".join(map(str, ids)))
    return json.loads(tandem("generate", model, "--ids-file", path, "--json", *arguments).stdout)


@pytest.mark.parametrize("name", FOLDERS)
def test_float32_logits_and_greedy_tokens_equal_the_reference(name, tmp_path):
    tensor = read_safetensors(GOLDEN / name / "golden.safetensors")
    for number, case in enumerate(golden(name)["cases"]):
        logits = tmp_path / "logits.safetensors"
        out = generate_ids(GOLDEN / name, case["prompt"], tmp_path, "--dtype", "float32", "--ignore-eos", "--logits", logits,
                           "--max-tokens", len(case["greedy"]))
        assert out["prompt_ids"] == case["prompt"]
        assert out["ids"] == case["greedy"]
        shape, values = read_safetensors(logits)("logits")
        _, reference = tensor(f"logits_{number}")
        assert shape == [len(case["prompt"]), len(reference)]
        assert relative_l2(values[-len(reference):], reference) < 2e-4


def test_logits_go_into_a_pipe_without_replacing_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        generate_ids(GOLDEN / "llama3", [5, 6, 7], tmp_path, "--logits", pipe, "--max-tokens", 1)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        size, = struct.unpack("<Q", reader.result(60)[:8])
    assert 0 < size < 1000


def test_output_that_does_not_fit_is_a_failure():
    command = [harness.BIN / "tandem", "tokenize", CHAT_MODEL, "--text", "Hello."]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=harness.environment(), timeout=600)
    assert run.returncode == 1 and "cannot write the whole output" in run.stderr
    ours, theirs = os.pipe()
    os.close(ours)  # a reader that had enough
    run = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, env=harness.environment(), timeout=600)
    os.close(theirs)
    assert run.returncode == 0 and not run.stderr


def test_a_reader_that_has_had_enough_ends_the_answer():
    ours, theirs = os.pipe()
    os.close(ours)
    run = subprocess.run([harness.BIN / "tandem", "generate", CHAT_MODEL, "--ids", "5,6,7", "--ignore-eos", "--max-tokens", "1900"],
                         stdout=theirs, stderr=subprocess.PIPE, text=True, env=harness.environment(), timeout=600)
    os.close(theirs)
    assert run.returncode == 0, run.stderr
    answered = re.search(r", (\d+) tokens in", run.stderr)  # not told for a single one
    assert not answered or int(answered.group(1)) < 10, run.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_bf16_logits_are_near_the_reference(name, tmp_path):
    tensor = read_safetensors(GOLDEN / name / "golden.safetensors")
    for number, case in enumerate(golden(name)["cases"]):
        logits = tmp_path / "logits.safetensors"
        generate_ids(GOLDEN / name, case["prompt"], tmp_path, "--dtype", "bf16", "--logits", logits, "--max-tokens", 1)
        _, values = read_safetensors(logits)("logits")
        _, reference = tensor(f"logits_{number}")
        assert relative_l2(values[-len(reference):], reference) < 2e-2


@needs_smollm2
@pytest.mark.skipif(harness.SANITIZED, reason="the real model is too slow under a sanitizer")
def test_the_real_model_equals_the_reference(tmp_path):
    tensor = read_safetensors(GOLDEN / "smollm2" / "golden.safetensors")
    for number, case in enumerate(golden("smollm2")["cases"]):
        chat = tmp_path / "chat.json"
        chat.write_text(json.dumps({"messages": case["messages"]}))
        logits = tmp_path / "logits.safetensors"
        out = json.loads(tandem("generate", SMOLLM2, "--chat", chat, "--dtype", "float32", "--json", "--logits", logits,
                                "--max-tokens", len(case["greedy"])).stdout)
        assert out["prompt_ids"] == case["prompt"]
        assert out["ids"] == case["greedy"]
        assert out["text"] == case["text"]
        _, values = read_safetensors(logits)("logits")
        _, reference = tensor(f"logits_{number}")
        assert relative_l2(values[-len(reference):], reference) < 2e-4


@needs_smollm2
def test_tokenize_equals_the_reference(tmp_path):
    for case in golden("smollm2")["tokenize"]:
        path = tmp_path / "text"
        path.write_bytes(case["text"].encode())
        out = json.loads(tandem("tokenize", SMOLLM2, "--file", path, "--json").stdout)
        assert (out["ids"], out["decoded"]) == (case["ids"], case["decoded"])
    for case in golden("smollm2")["cases"]:
        path = tmp_path / "chat.json"
        path.write_text(json.dumps(case["messages"]))
        out = json.loads(tandem("tokenize", SMOLLM2, "--chat", path, "--json").stdout)
        assert (out["ids"], out["rendered"]) == (case["prompt"], case["rendered"])


@pytest.mark.skipif(harness.SANITIZED, reason="too slow under a sanitizer")
@pytest.mark.parametrize("data", ["dialog", "math"])
def test_perplexity_of_the_small_model_equals_the_reference(data):
    reference = golden("smollm2")["perplexity"]["chat-6m"][data]
    out = json.loads(tandem("eval", CHAT_MODEL, "--data", ROOT / f"tests/data/eval/{data}.jsonl", "--limit", 40, "--dtype",
                            "float32", "--json", timeout=300).stdout)
    assert out["tokens"] == reference["tokens"]
    assert out["perplexity"] == pytest.approx(reference["perplexity"], rel=1e-4)


# The gates for the formats: perplexity rise against bf16, and wire bytes against bf16.
GATES = {"int8": (0.005, 0.52), "k8v4": (0.01, 0.42), "int4": (0.03, 0.40)}


@needs_smollm2
@pytest.mark.skipif(harness.SANITIZED, reason="too slow under a sanitizer")
def test_kv_formats_keep_the_quality_they_promise():
    def run(kv):
        return json.loads(tandem("eval", SMOLLM2, "--data", ROOT / "tests/data/eval/math.jsonl", "--limit", 16, "--kv", kv,
                                 "--json", timeout=300).stdout)
    exact = run("bf16")
    for kv, (rise, bytes_ratio) in GATES.items():
        out = run(kv)
        assert out["tokens"] == exact["tokens"]
        assert out["perplexity"] <= exact["perplexity"] * (1 + rise), kv
        assert out["kv"]["wire_ratio"] <= bytes_ratio, kv


def test_a_seed_makes_sampling_repeatable(tmp_path):
    def sample(seed):
        return generate_ids(CHAT_MODEL, [1, 50, 60], tmp_path, "--temperature", 1, "--seed", seed, "--max-tokens", 24,
                            "--ignore-eos")["ids"]
    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_answer(threads, tmp_path):
    out = generate_ids(CHAT_MODEL, range(5, 105), tmp_path, "--threads", threads, "--max-tokens", 16, "--ignore-eos")
    alone = generate_ids(CHAT_MODEL, range(5, 105), tmp_path, "--max-tokens", 16, "--ignore-eos")
    assert out["ids"] == alone["ids"]


@pytest.mark.parametrize("text", ["5 6 7", "5,6,7", " 5,\n6\t7 ,"])
def test_ids_files_take_spaces_and_commas(text, tmp_path):
    path = tmp_path / "ids"
    path.write_text(text)
    out = json.loads(tandem("generate", CHAT_MODEL, "--ids-file", path, "--max-tokens", 1, "--json").stdout)
    assert out["prompt_ids"] == [5, 6, 7]


@pytest.mark.parametrize("arguments, code, fragments", [
    (["generate"], 2, ["MODEL"]),
    (["generate", CHAT_MODEL], 2, ["prompt"]),
    (["generate", CHAT_MODEL, "--ids", "1,x"], 2, ["--ids", "number 2", "x"]),
    (["generate", CHAT_MODEL, "--ids", "4294967296"], 2, ["--ids", "4294967296"]),
    (["generate", CHAT_MODEL, "--ids", "1,4096"], 2, ["--ids", "4096", "4095"]),
    (["generate", CHAT_MODEL, "--ids", "-1"], 2, ["--ids", "-1"]),
    (["generate", CHAT_MODEL, "--ids", ""], 2, ["--ids"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--max-tokens", "4096"], 2, ["--max-tokens", "4096"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--kv", "int3"], 2, ["--kv", "int3"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--dtype", "int8"], 2, ["--dtype"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--device", "gpu"], 2, ["--device", "cuda:N"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--quantization", "int3"], 2, ["--quantization"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--quantization", "fp8"], 2, ["--quantization", "--device cuda"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--temperature", "nan"], 2, ["--temperature", "nan", "0 to 100"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--repetition-penalty", "0"], 2, ["--repetition-penalty", "0.01 to 100"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--seed", "-1"], 2, ["--seed", "-1"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--top-k", "-1"], 2, ["--top-k", "-1"]),
    (["eval", CHAT_MODEL, "--data", "x", "--limit", "-1"], 2, ["--limit", "-1"]),
    (["bench", "serve", "--url", "http://127.0.0.1:1", "--rate", "nan"], 2, ["--rate", "nan"]),
    (["bench", "transfer", "--from", "cpu", "--to", "0"], 2, ["both ends"]),
    (["bench", "transfer", "--transport", "tcp"], 2, ["--transport", "tcp"]),
    (["up", "/nowhere", "--timeout", "nan"], 2, ["--timeout", "nan"]),
    (["status", "--url", "http://127.0.0.1:65537"], 2, ["65537", "bad port"]),
    (["status", "--url", "http://127.0.0.1:0"], 2, ["bad port"]),
    (["generate", CHAT_MODEL, "--ids-file", "/nowhere"], 2, ["/nowhere"]),
    (["generate", "/nowhere", "--ids", "1"], 2, ["/nowhere", "MODEL"]),
    (["generate", CHAT_MODEL, "--chat", "/"], 2, ["/: Is a directory"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--logits", "/nowhere/x"], 2, ["/nowhere/x", "--logits"]),
    (["tokenize", "/nowhere", "--text", "x"], 2, ["/nowhere", "MODEL"]),
    (["tokenize", CHAT_MODEL, "--file", "/nowhere"], 2, ["/nowhere"]),
    (["eval", "/nowhere", "--data", "x"], 2, ["/nowhere", "MODEL"]),
    (["generate", GOLDEN / "llama3", "--prompt", "hello"], 2, ["tokenizer"]),
    (["tokenize", CHAT_MODEL], 2, []),
    (["eval", CHAT_MODEL, "--data", "/nowhere"], 2, ["/nowhere"]),
    (["up", "/nowhere.yaml"], 2, ["/nowhere.yaml"]),
    (["status", "--url", "http://127.0.0.1:9"], 1, ["127.0.0.1"]),
    (["status", "--run-dir", "/nowhere"], 1, ["no cluster runs from /nowhere", "another folder with --run-dir", "--url"]),
    (["chat", "--run-dir", "/nowhere", "--ask", "x"], 1, ["no cluster runs from /nowhere", "another folder with --run-dir"]),
    (["up", harness.ROOT / "deploy/quickstart.yaml", "--run-dir", "/proc/run"], 1, ["/proc/run: ", "--run-dir", "else ./run"]),
    (["down", "--config", "/nowhere.yaml"], 2, ["--config /nowhere.yaml", "no such file"]),
    (["nonsense"], 2, ["unknown word nonsense"]),
    (["statsu", "--json"], 2, ["unknown word statsu", "did you mean status?"]),
    (["generate", CHAT_MODEL, "--promt", "x"], 2, ["tandem generate: unknown option --promt", "did you mean --prompt?"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--temprature=0.5"], 2, ["--temprature=0.5", "did you mean --temperature?"]),
    (["generate", CHAT_MODEL, "--ids", "1", "--qqq"], 2, ["unknown option --qqq"]),
    (["bench", "server"], 2, ["tandem bench: unknown word server", "did you mean serve?"]),
    (["bench", "serve", "--request", "1"], 2, ["did you mean --requests?"]),
])
def test_wrong_arguments_are_named(arguments, code, fragments):
    run = tandem(*arguments, check=False)
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    for fragment in fragments:
        assert fragment in run.stderr


def test_up_in_a_folder_that_is_not_ones_own_names_run_dir(tmp_path):
    """As `cd / && tandem up FILE`, whose ./run is there but not to be written: also for root, whom no mode keeps out."""
    (tmp_path / "run/supervisor.lock").mkdir(parents=True)
    (tmp_path / "no-xdg").touch()
    run = tandem("up", harness.ROOT / "deploy/quickstart.yaml", check=False, cwd=tmp_path,
                 env=harness.environment(XDG_RUNTIME_DIR=tmp_path / "no-xdg"))
    assert run.returncode == 1 and f"cannot open {tmp_path}/run/supervisor.lock: " in run.stderr
    assert "--run-dir" in run.stderr and "else ./run of the working directory" in run.stderr


@pytest.mark.parametrize("text, fragment", [
    ("{", "not valid JSON"), ('{"messages": []}', "empty"), ('{"messages": "x"}', "messages"), ("3", "messages"),
    ('{"messages": [{"role": "user", "content": "x"}], "tools": 3}', "tools"),
])
def test_wrong_chat_files_are_named(text, fragment, tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(text)
    run = tandem("generate", CHAT_MODEL, "--chat", path, check=False)
    assert run.returncode == 2
    assert fragment in run.stderr and "chat.json" in run.stderr


def test_eval_names_the_line_that_is_wrong(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n\n{"messages": 1}\n')
    run = tandem("eval", CHAT_MODEL, "--data", path, check=False)
    assert run.returncode == 2
    assert "data.jsonl:3" in run.stderr


def test_weights_that_are_no_numbers_are_told(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((CHAT_MODEL / name).read_bytes())
    data = (CHAT_MODEL / "model.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    (tmp_path / "model.safetensors").write_bytes(data[:header] + b"\xff" * (len(data) - header))
    chats = tmp_path / "data.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    for arguments in (["generate", tmp_path, "--ids", "5,6,7"], ["generate", tmp_path, "--ids", "5,6", "--logits", tmp_path / "l"],
                      ["eval", tmp_path, "--data", chats]):
        run = tandem(*arguments, check=False)
        assert run.returncode == 2 and "are not numbers" in run.stderr, run.stderr


def test_dummy_weights_need_only_a_config(tmp_path):
    (tmp_path / "config.json").write_text((CHAT_MODEL / "config.json").read_text())
    out = json.loads(tandem("generate", tmp_path, "--load-format", "dummy", "--ids", "1,2,3", "--max-tokens", 4,
                            "--ignore-eos", "--json").stdout)
    assert len(out["ids"]) == 4
    assert out["text"] is None


def test_help_and_version():
    assert tandem("--version").stdout.startswith("tandem ")
    text = tandem("--help").stdout
    for command in ["up", "down", "status", "generate", "tokenize", "eval", "chat", "bench"]:
        assert command in text


@pytest.mark.parametrize("command, defaults", [
    (["up"], ["--timeout", "=300"]),
    (["generate"], ["0 to 100=0", "0 to 1=1", "}=auto", "--device TEXT=cpu"]),
    (["eval"], ["--context", "=1024"]),
    (["bench", "serve"], ["=1000", "=256"]),
    (["bench", "transfer"], ["--from TEXT=0", "=256"]),
])
def test_help_shows_defaults(command, defaults):
    text = " ".join(tandem(*command, "--help").stdout.split())
    for default in defaults:
        assert default in text, text


def test_help_shows_no_default_that_stands_for_none():
    """An empty list, a number that means "not given": the words beside the flag say what happens then."""
    for command in (["up"], ["down"], ["status"], ["chat"], ["doctor"], ["generate"], ["tokenize"], ["eval"],
                    ["bench", "serve"], ["bench", "transfer"], ["bench", "step"], ["bench", "kernels"]):
        text = tandem(*command, "--help").stdout
        for bad in ("=[]", "={}", '=""', "=-1", "18446744073709551615", "=nan", "16777216=0"):
            assert bad not in text, text


def test_each_role_says_what_it_is():
    said = {role: subprocess.run([str(harness.BIN / f"tandem-{role}"), "--help"], capture_output=True, text=True, check=True,
                                 env=harness.environment()).stdout for role in ("router", "prefill", "decode")}
    assert len({text.splitlines()[0] for text in said.values()}) == 3
    assert "prompts" in said["prefill"].splitlines()[0] and "answers" in said["decode"]
    for text in said.values():
        assert text.count("default:") >= 1


def test_doctor_describes_this_machine_in_both_forms():
    run = tandem("doctor", "--json", check=False)
    report = json.loads(run.stdout)
    assert run.returncode == (0 if report["healthy"] else 1), run.stdout
    assert report["system"]["cpus"] >= 1
    assert {t["name"] for t in report["transports"]} == {"ucx", "cuda_ipc", "nccl"}
    assert len(report["topology"]) == len(report["cards"])
    text = tandem("doctor", check=False).stdout
    for part in ("machine", "CUDA", "KV transports", report["ucx"]["version"]):
        assert part in text


def test_doctor_checks_what_the_nodes_of_a_file_ask_for(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps({"model": {"path": str(CHAT_MODEL)}, "prefill": [],
                                "decode": [{"name": "far-away", "device": "cuda:999"}]}))
    run = tandem("doctor", "--json", "--config", path, check=False)
    report = json.loads(run.stdout)
    assert run.returncode == 1 and not report["healthy"]
    assert any(f["severity"] == "problem" and "far-away" in f["text"] for f in report["findings"])
    path.write_text("decode: [{device: gpu}]\nmodel: {path: x}\n")
    run = tandem("doctor", "--config", path, check=False)
    assert run.returncode == 2 and "'gpu' is not a device" in run.stderr
