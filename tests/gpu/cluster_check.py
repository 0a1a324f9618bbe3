#!/usr/bin/env python3
"""Real clusters on one card: router, prefill and decode node in processes of their own, both nodes on cuda:0.

Needs a card and the installed programs (TANDEM_TEST_BIN names their folder); nothing but Python's standard library.
usage: cluster_check.py [--quick] [--transport KIND]...     exit code 0: all passed; 77: no card here
  --quick       only the text that clusters give
  --transport   instead of cuda_ipc and ucx: which to try, one cluster each
"""
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402

PROMPTS = ["Hello, how are you?", "What is the capital of France?", "Write one sentence about the sea."]
FAILURES = []
TRANSPORTS = []


def check(what, good, detail=""):
    print(f"{'ok    ' if good else 'FAILED'} {what}{'' if good else ': ' + detail}", flush=True)
    if not good:
        FAILURES.append(what)


def models():
    yield harness.CHAT_MODEL, 48
    if harness.SMOLLM2:
        yield pathlib.Path(harness.SMOLLM2), 48


def on_cpu(folder, model, prompt, tokens, kv="auto"):
    """The text that the CPU engine gives in float32, in one process, and its tokens."""
    chat = folder / "chat.json"
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": prompt}]}))
    run = harness.tandem("generate", model, "--chat", chat, "--dtype", "float32", "--kv", kv, "--max-tokens", tokens, "--json")
    answer = json.loads(run.stdout)
    return answer["text"], answer["ids"]


def config(model, transport="cuda_ipc", **kv):
    node = {"device": "cuda:0", "gpu_memory_utilization": 0.2, "max_batch_tokens": 512, "max_sequences": 16,
            "transport": {"kind": transport}}
    return {"model": {"path": str(model), "id": "m"}, "kv": {"memory": "256MiB", **kv},
            "prefill": [node], "decode": [node]}


# Nats between the two best tokens below which either may be drawn: what bf16 makes of logits (tests/unit/engine/golden_test.cc holds
# single steps to the same).
TIE = 0.5


def lead_where_it_parts(cluster, prompt, tokens, wanted):
    """By how much the cluster's token leads where its answer leaves the wanted one. Tokens are compared, not text: " " and then "12"
    leave " problem" at " ", though the texts still agree there."""
    reply = cluster.chat(messages=[{"role": "user", "content": prompt}], max_tokens=tokens, logprobs=True, top_logprobs=2)
    text, ids = wanted
    ends = {len(cluster.post("/detokenize", {"tokens": ids[:n + 1]}).json["prompt"].encode()) for n in range(len(ids))}
    so_far = b""
    for token in reply["choices"][0]["logprobs"]["content"]:
        so_far += bytes(token["bytes"])
        if not text.encode().startswith(so_far) or len(so_far) not in ends:
            best = [t["logprob"] for t in token["top_logprobs"]]
            return best[0] - best[1]
    return float("inf")  # it ends too early, or is another one now


def check_text(cluster, what, prompt, tokens, wanted, got):
    text = wanted[0]
    lead = 0 if got == text else lead_where_it_parts(cluster, prompt, tokens, wanted)
    check(f"{what}: {prompt}{'' if got == text else f' (parts at a lead of {lead:.2f})'}", lead < TIE, f"\n  cpu {text!r}\n  gpu {got!r}")


def answers(cluster, tokens):
    out = []
    for prompt in PROMPTS:
        reply = cluster.chat(messages=[{"role": "user", "content": prompt}], max_tokens=tokens)
        out.append(reply["choices"][0]["message"]["content"])
    return out


def same_text_as_on_cpu(folder):
    for model, tokens in models():
        wanted = [on_cpu(folder, model, prompt, tokens) for prompt in PROMPTS]
        for kind in TRANSPORTS:
            try:
                with harness.Cluster(folder / f"{model.stem}-{kind}", config(model, kind)) as cluster:
                    compare(cluster, f"{model.stem} over {kind}", kind, wanted, tokens)
            except AssertionError as error:
                check(f"{model.stem} over {kind}", False, str(error)[-2500:])


def compare(cluster, name, kind, wanted, tokens):
    got = answers(cluster, tokens)
    for prompt, a, b in zip(PROMPTS, wanted, got):
        check_text(cluster, f"{name}: same text as on CPU in float32", prompt, tokens, a, b)
    engines = {n["engine"] for n in cluster.status()["nodes"]}
    check(f"{name}: both nodes compute on the card", all("cuda" in e for e in engines), str(engines))
    log = "".join(p.read_text(errors="replace") for p in cluster.run_dir.glob("*.log"))
    check(f"{name}: KV moves as configured", f'"transport":"{kind}"' in log, log[-600:])
    begin = time.monotonic()
    company = (PROMPTS * 3)[:8]  # in steps of so many rows each has the same bits as alone
    streams = [cluster.stream("/v1/chat/completions", {
        "messages": [{"role": "user", "content": p}], "max_tokens": tokens}) for p in company]
    texts = []
    for s in streams:
        texts.append(s.text())
        s.close()
    differ = sum(a != b for a, b in zip(texts, got * 3))
    check(f"{name}: the same in company of seven others", differ == 0, f"{differ} differ: {texts} against {got}")
    print(f"       {len(streams)} streams of {tokens} tokens in {time.monotonic() - begin:.2f} s")


def every_kv_format(folder):
    for kv in ["int8", "fp8_e4m3", "k8v4", "int4"]:
        wanted = [on_cpu(folder, harness.CHAT_MODEL, prompt, 24, kv) for prompt in PROMPTS]
        with harness.Cluster(folder / kv, config(harness.CHAT_MODEL, format=kv)) as cluster:
            for prompt, a, b in zip(PROMPTS, wanted, answers(cluster, 24)):
                check_text(cluster, f"KV in {kv}: same text as on CPU in float32", prompt, 24, a, b)


def a_tail_on_the_cpu(folder):
    """Answers that grow long where KV memory is short leave the card for the CPU, and are the same."""
    prompts = [list(range(first, first + 100)) for first in (200, 300, 400)]

    def long_answers(cluster):
        return [cluster.completion(prompt=p, max_tokens=200, ignore_eos=True)["choices"][0]["text"] for p in prompts]
    for kv, tail in [("bf16", "auto"), ("int4", "auto"), ("int8", "bf16")]:
        # 20 blocks: a quarter of them is free until a sequence has 240 tokens.
        settings = config(harness.CHAT_MODEL, format=kv, memory="0B", blocks=20)
        settings["model"]["max_context"] = 320
        with harness.Cluster(folder / f"no-tail-{kv}", settings) as cluster:
            wanted = long_answers(cluster)
        settings["cpu_tail"] = {"enabled": True, "after_tokens": 40, "memory": "64MiB", "threads": 2, "format": tail}
        with harness.Cluster(folder / f"tail-{kv}", settings) as cluster:
            got = long_answers(cluster)
            samples = cluster.metrics("decode-0")
        moves = harness.metric(samples, "tandem_decode_cpu_tail_moves_total", direction="out")
        check(f"tail of {kv} KV kept in {tail}: every long answer leaves the card", moves >= len(prompts), str(moves))
        check(f"tail of {kv} KV kept in {tail}: bytes are counted", harness.metric(samples, "tandem_decode_cpu_tail_bytes_total") > 0)
        # Texts part after the move where KV is kept otherwise from then on, and where coarse KV makes much of a last bit.
        part = 1.0 if kv == "bf16" else 0.6
        same = sum(a[:int(part * len(a))] == b[:int(part * len(a))] for a, b in zip(wanted, got))  # a tie may part one
        check(f"tail of {kv} KV kept in {tail}: same text as without", same + 1 >= len(got), f"\n  {wanted}\n  {got}")


def prefill_in_fp8(folder):
    """Prefill nodes whose projections are FP8 fill pages that decode nodes in bf16 read."""
    settings = config(harness.CHAT_MODEL)
    with harness.Cluster(folder / "bf16", settings) as cluster:
        wanted = answers(cluster, 24)
    settings["prefill"] = [{**settings["prefill"][0], "quantization": "fp8"}]
    with harness.Cluster(folder / "fp8", settings) as cluster:
        got = answers(cluster, 24)
        engines = sorted((n["role"], n["engine"]) for n in cluster.status()["nodes"])
        check("prefill in FP8, decode in bf16", [e.endswith("-fp8") for _, e in engines] == [False, True], str(engines))
        same = sum(a[:8] == b[:8] for a, b in zip(wanted, got))
        check("prefill in FP8: most answers begin as in bf16", 2 * same > len(got), f"{got} against {wanted}")


def a_killed_node_is_replaced(folder):
    with harness.Cluster(folder / "killed", config(harness.CHAT_MODEL)) as cluster:
        wanted = answers(cluster, 200)[0]
        stream = cluster.stream("/v1/chat/completions", {
            "messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 200})
        text = ""
        for i, event in enumerate(stream.events()):
            text += harness.text_of(event)
            if i == 3:
                cluster.kill("decode-0")
        check("a decode node killed in mid-stream: the client sees no gap", text == wanted, f"{text!r} {wanted!r}")


def bad_devices(folder):
    run = harness.tandem("generate", harness.CHAT_MODEL, "--ids", "1", "--device", "cuda:99", check=False)
    check("a device index that is not there", run.returncode != 0 and "99" in run.stderr, run.stderr[-300:])
    run = harness.tandem("generate", harness.CHAT_MODEL, "--ids", "1", "--device", "cuda:0", check=False,
                         env=harness.environment(CUDA_VISIBLE_DEVICES=""))
    check("no visible device", run.returncode != 0 and "CUDA_VISIBLE_DEVICES" in run.stderr, run.stderr[-300:])


def main():
    TRANSPORTS.extend(b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--transport")
    if not TRANSPORTS:
        TRANSPORTS.extend(["cuda_ipc", "ucx"])
    doctor = json.loads(harness.tandem("doctor", "--json", check=False).stdout or "{}")
    if '"devices": []' in json.dumps(doctor):
        print("no card here")
        return 77
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-") as name:
        folder = pathlib.Path(name)
        steps = [bad_devices, same_text_as_on_cpu]
        if "--quick" not in sys.argv:
            steps += [every_kv_format, a_tail_on_the_cpu, prefill_in_fp8, a_killed_node_is_replaced]
        for step in steps:
            try:
                step(folder)
            except (AssertionError, OSError, ValueError, KeyError) as error:
                check(step.__name__, False, str(error)[-3000:])
    print(f"{len(FAILURES)} failed")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
