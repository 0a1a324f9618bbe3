#!/usr/bin/env python3
"""What prompts cost those who decode on the same card: both in one node's steps, or in two processes that share the card.

A constant company of streams decodes while long prompts arrive. Printed are the streams' time between tokens and the prompts' time
to first token, for one node at several step budgets and for a prefill and a decode node on that card.

Needs the programs (TANDEM_TEST_BIN names their folder) and nothing but Python's standard library. Runs on CPU nodes too.

usage: placements.py [--device cuda:0] [--model qwen2-7b] [--budgets 12ms,25ms,50ms] [--streams 16] [--prompts 16] [--json FILE]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "multi_gpu"))
from layout import harness, named_model, node, node_metrics  # noqa: E402


def bench(cluster, **words):
    command = [str(harness.BIN / "tandem"), "bench", "serve", "--url", cluster.url, "--json"]
    for name, value in words.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.environment())


def report_of(process, seconds):
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err[-1000:]
    return json.loads(out)


def together(options, model, budget):
    """One node for both, which plans its steps for `budget`."""
    return {"model": model, "kv": {"memory": options.kv_memory},
            "router": {"dispatch": {"local_prefill_below": 1 << 20}}, "prefill": [],
            "decode": [node(options.device, "auto", 0.85, threads=options.threads, max_sequences=64, max_batch_tokens=2048,
                            chunk_tokens=2048, step_budget=budget)]}


def beside(options, model):
    """Two processes, whose kernels take turns on the card."""
    both = {"threads": options.threads, "max_sequences": 64, "max_batch_tokens": 2048}
    return {"model": model, "kv": {"memory": options.kv_memory}, "router": {"dispatch": {"local_prefill_below": 0}},
            "prefill": [node(options.device, "auto", 0.425, **both)], "decode": [node(options.device, "auto", 0.425, **both)]}


def measure(options, folder, name, config):
    with harness.Cluster(folder, config, ready_timeout=300) as cluster:
        report_of(bench(cluster, requests=4, concurrency=2, prompt_tokens=options.prompt_tokens, output_tokens=8), 120)  # warm
        streams = bench(cluster, requests=options.streams, concurrency=options.streams, prompt_tokens=64,
                        output_tokens=options.output_tokens)
        time.sleep(options.settle)
        prompts = report_of(bench(cluster, requests=options.prompts, rate=options.rate, prompt_tokens=options.prompt_tokens,
                                  output_tokens=1), 300)
        running = streams.poll() is None
        company = report_of(streams, 300)
        seen = node_metrics(cluster, "decode-0")
    steps = {key: sum(v for (n, _), v in seen.items() if n == f"tandem_decode_mixed_steps_{key}total") for key in ("", "late_")}
    return {"placement": name, "itl_p50": company["itl_seconds"]["p50"], "itl_p99": company["itl_seconds"]["p99"],
            "tokens_per_second": company["output_tokens_per_second"], "ttft_p50": prompts["ttft_seconds"]["p50"],
            "ttft_p99": prompts["ttft_seconds"]["p99"], "prompt_tokens_per_second": prompts["prompt_tokens"] / prompts["duration_seconds"],
            "mixed_steps": int(steps[""]), "late_steps": int(steps["late_"]), "decoded_throughout": running,
            "failed": company["requests"]["failed"] + prompts["requests"]["failed"]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--model", default="qwen2-7b", help="chat-6m, smollm2, qwen2-7b[:LAYERS] with made-up weights, or a path")
    parser.add_argument("--budgets", default="12ms,25ms,50ms")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=1200, help="of each stream")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=4, help="prompts a second")
    parser.add_argument("--settle", type=float, default=0.5, help="seconds that the streams have before the first prompt")
    parser.add_argument("--kv-memory", default="8GiB", help="of each node")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each CPU node")
    parser.add_argument("--json")
    return parser.parse_args()


def main():
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tandem-placements-") as name:
        folder = pathlib.Path(name)
        model = named_model(options.model, folder / "models")
        runs = [("two processes", beside(options, model))]
        runs += [(f"one node, budget {b}", together(options, model, b)) for b in options.budgets.split(",") if b]
        for i, (what, config) in enumerate(runs):
            rows.append(measure(options, folder / str(i), what, config))
            row = rows[-1]
            print(f"{what:24} ITL p50 {row['itl_p50'] * 1e3:6.2f} p99 {row['itl_p99'] * 1e3:7.2f} ms, "
                  f"{row['tokens_per_second']:6.0f} tokens/s; prompts TTFT p50 {row['ttft_p50'] * 1e3:6.0f} p99 "
                  f"{row['ttft_p99'] * 1e3:6.0f} ms, {row['prompt_tokens_per_second']:6.0f} tokens/s; late steps "
                  f"{row['late_steps']} of {row['mixed_steps']}; failed {row['failed']}"
                  f"{'' if row['decoded_throughout'] else '; the streams had ended before the last prompt'}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(r["failed"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
