#!/usr/bin/env python3
"""Real clusters on two cards of one host: prefill on cuda:0, decode on cuda:1, over each transport and in each KV format.

What they answer is what the same cluster answers on one card. Needs the installed programs (TANDEM_TEST_BIN names their
folder) and two cards; nothing but Python's standard library.   usage: cluster_check.py [--quick]
"""
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402

PROMPTS = ["Hello, how are you?", "What is the capital of France?", "Write one sentence about the sea. " * 20]
FORMATS = ["bf16", "int8", "fp8_e4m3", "k8v4", "int4"]
FAILURES = []


def check(what, good, detail=""):
    print(f"{'ok    ' if good else 'FAILED'} {what}{'' if good else ': ' + detail}", flush=True)
    if not good:
        FAILURES.append(what)


def config(model, kind, decode, kv_format):
    def node(device):
        return {"device": device, "gpu_memory_utilization": 0.2, "max_batch_tokens": 512, "max_sequences": 16,
                "transport": {"kind": kind}}
    return {"model": {"path": str(model), "id": "m"}, "kv": {"memory": "256MiB", "format": kv_format},
            "prefill": [node("cuda:0")], "decode": [node(decode)]}


def used(cluster):
    details = sorted({n["transport_detail"] for n in cluster.status()["nodes"]})
    return None if any("not connected" in d for d in details) else details


def answers(folder, name, kind, decode, kv_format):
    model = harness.SMOLLM2 or harness.CHAT_MODEL
    begin = time.monotonic()
    with harness.Cluster(folder / name, config(model, kind, decode, kv_format)) as cluster:
        texts = []
        for prompt in PROMPTS:
            reply = cluster.chat(messages=[{"role": "user", "content": prompt}], max_tokens=32)
            texts.append(reply["choices"][0]["message"]["content"])
        # Heartbeats bring what the first hand-over used.
        details = harness.wait_until(lambda: used(cluster), 10, "nodes that name the transport they used")
    print(f"       {name}: {time.monotonic() - begin:.1f} s, {details}", flush=True)
    return texts, details


def main():
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(prefix="tandem-multi-gpu-") as name:
        folder = pathlib.Path(name)
        for kv_format in FORMATS[:1] if quick else FORMATS:
            wanted, _ = answers(folder, f"one-{kv_format}", "cuda_ipc", "cuda:0", kv_format)
            for kind in ["cuda_ipc", "nccl", "ucx"]:
                try:
                    got, details = answers(folder, f"two-{kv_format}-{kind}", kind, "cuda:1", kv_format)
                except AssertionError as error:
                    check(f"{kv_format} over {kind}", False, str(error)[-1500:])
                    continue
                check(f"{kv_format} over {kind}: the same text as on one card", got == wanted, f"\n  one {wanted}\n  two {got}")
                check(f"{kv_format} over {kind}: KV moved over it", all(d.startswith(kind) for d in details), str(details))
    print(f"{len(FAILURES)} failed")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
