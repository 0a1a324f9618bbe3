"""Which nodes of a cluster run where, and the models they serve; shared by the programs of this folder."""
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402

# Qwen2-7B as its config.json gives it. The weights are made up at load.
QWEN2_7B = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
            "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 152064,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu",
            "tie_word_embeddings": False, "use_sliding_window": False, "torch_dtype": "bfloat16"}


def on_cards(devices):
    return devices[0].startswith("cuda")


def kinds_for(devices):
    """Every transport that can join nodes on these devices."""
    if not on_cards(devices):
        return ["ucx"]
    return ["nccl", "cuda_ipc", "ucx"] if len(set(devices)) > 1 else ["cuda_ipc", "ucx"]


# As --transport ucx+cuda: for a UCX that knows CUDA.
UCX_CUDA = "cuda_copy,cuda_ipc,posix,tcp,self"
FORMATS = ["bf16", "int8", "fp8_e4m3", "k8v4", "int4"]


def node(device, kind="auto", memory_share=0.0, threads=1, **settings):
    """A node's part of the configuration; `memory_share` of a card, `threads` of CPUs, as the device has it."""
    transport = {"kind": "ucx", "ucx_tls": UCX_CUDA} if kind == "ucx+cuda" else {"kind": kind}
    out = {"device": device, "transport": transport, **settings}
    if device == "cpu":
        out["threads"] = threads
    elif memory_share:
        out["gpu_memory_utilization"] = memory_share
    return out


def qwen2_7b(folder, layers=28, **changes):
    """A folder with a model of Qwen2-7B's shape. Every id is a piece of text, so that answers can be told apart and timed."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = {**QWEN2_7B, "num_hidden_layers": layers, **changes}
    (folder / "config.json").write_text(json.dumps(shape))
    for file in ["tokenizer_config.json", "generation_config.json"]:
        shutil.copy(harness.CHAT_MODEL / file, folder / file)
    tokenizer = json.loads((harness.CHAT_MODEL / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    known = set(vocabulary.values()) | {t["id"] for t in tokenizer["added_tokens"]}
    vocabulary.update((f"w{i}", i) for i in range(shape["vocab_size"]) if i not in known)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {"path": str(folder), "id": f"qwen2-7b-{layers}-layers", "load_format": "dummy"}


def named_model(name, folder):
    """chat-6m, smollm2 (TANDEM_SMOLLM2 names its file), qwen2-7b[:LAYERS], or a path."""
    if name == "chat-6m":
        return {"path": str(harness.CHAT_MODEL), "id": name}
    if name == "smollm2":
        if not harness.SMOLLM2:
            raise SystemExit("smollm2: TANDEM_SMOLLM2 names no file")
        return {"path": harness.SMOLLM2, "id": name}
    if name.split(":")[0] == "qwen2-7b":
        return qwen2_7b(pathlib.Path(folder) / name.replace(":", "-"), int((name + ":28").split(":")[1]))
    return {"path": name, "id": pathlib.Path(name).stem}


def node_metrics(cluster, name):
    """/metrics of one node, which answers at once or not at all."""
    return cluster.metrics(name, timeout=10)
