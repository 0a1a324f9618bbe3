#!/usr/bin/env python3
"""How much of the KV push is left to wait for once a prompt is computed: layers travel while later ones are computed.

One prefill and one decode node; prompts of each length one after the other, never cached. Printed for each length and transport:
compute time, wire bytes, time from the first page posted to the last acknowledged, and the part of it after computing had ended,
over the compute time (target: 0.02).

usage: exposed.py [--devices cuda:0,cuda:1] [--model qwen2-7b] [--transport KIND]... [--tokens 512,2048,8192] [--json FILE]
"""
import argparse
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from layout import harness, kinds_for, named_model, node, node_metrics  # noqa: E402

# tandem_prefill_…: sums over transfers that ended well.
SUMS = {"compute": "transfer_compute_seconds_total", "exposed": "transfer_exposed_seconds_total",
        "transfer": "transfer_seconds_sum", "wire": "transfer_wire_bytes_total", "raw": "transfer_raw_bytes_total",
        "count": "transfer_seconds_count"}


def sums(cluster):
    samples = node_metrics(cluster, "prefill-0")
    return {key: harness.metric(samples, "tandem_prefill_" + name) for key, name in SUMS.items()}


def measure(options, folder, model, kind):
    def there(device):
        return node(device, kind, options.memory_share, max_batch_tokens=options.batch_tokens, max_sequences=8)
    config = {"model": model, "kv": {"prefix_cache": False, "format": options.kv_format, "memory": options.kv_memory},
              "router": {"dispatch": {"local_prefill_below": 0}, "admission": {"deadline": "10m"}},
              "prefill": [{**there(options.devices[0]), "chunk_tokens": options.chunk}], "decode": [there(options.devices[-1])]}
    rows = []
    with harness.Cluster(folder / f"exposed-{kind}", config, ready_timeout=300) as cluster:
        seed = 0

        def ask(tokens):
            nonlocal seed
            seed += 1
            prompt = [(seed * 131 + i * (2 * seed + 1)) % 4000 + 5 for i in range(tokens)]
            cluster.completion(prompt=prompt, max_tokens=2, ignore_eos=True, timeout=120)

        def done(count):
            harness.wait_until(lambda: sums(cluster)["count"] >= count, 30, "the end of every transfer")
            return sums(cluster)
        for tokens in options.tokens:
            before = sums(cluster)
            ask(tokens)  # shapes met for the first time
            before = done(before["count"] + 1)
            for _ in range(options.repeats):
                ask(tokens)
            after = done(before["count"] + options.repeats)
            each = {k: (after[k] - before[k]) / options.repeats for k in SUMS}
            rows.append({"transport": kind, "tokens": tokens, "compute_seconds": each["compute"], "wire_bytes": each["wire"],
                         "transfer_seconds": each["transfer"], "exposed_seconds": each["exposed"],
                         "exposed_ratio": each["exposed"] / each["compute"] if each["compute"] else None,
                         "detail": cluster.status()["transfers"]["transport"]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--model", default="qwen2-7b")
    parser.add_argument("--transport", action="append")
    parser.add_argument("--tokens", default="512,2048,8192")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kv-format", default="auto")
    parser.add_argument("--kv-memory", default="4GiB")
    parser.add_argument("--memory-share", type=float, default=0.4)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.devices = options.devices.split(",")
    options.tokens = [int(t) for t in options.tokens.split(",")]
    rows, problems = [], []
    with tempfile.TemporaryDirectory(prefix="tandem-exposed-") as name:
        model = named_model(options.model, pathlib.Path(name) / "models")
        print(f"{'transport':<10}{'tokens':>8}{'compute ms':>12}{'wire MB':>10}{'push ms':>10}{'exposed ms':>12}{'ratio':>9}")
        for kind in options.transport or kinds_for(options.devices):
            try:
                found = measure(options, pathlib.Path(name), model, kind)
            except (AssertionError, OSError, ValueError, KeyError) as error:
                problems.append(f"{kind}: {str(error)[-1500:]}")
                continue
            rows += found
            for r in found:
                print(f"{r['transport']:<10}{r['tokens']:>8}{r['compute_seconds'] * 1e3:>12.2f}{r['wire_bytes'] / 1e6:>10.2f}"
                      f"{r['transfer_seconds'] * 1e3:>10.2f}{r['exposed_seconds'] * 1e3:>12.3f}{r['exposed_ratio'] or 0:>9.4f}",
                      flush=True)
            print(f"  {found[-1]['detail']}")
    for problem in problems:
        print(f"MISSING {problem}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"model": model["id"], "devices": options.devices, "rows": rows,
                                                          "problems": problems}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
