#!/usr/bin/env python3
"""Disaggregated clusters against the same number of colocated nodes, on a replayed trace.

1P1D, 2P1D, 1P2D and 2P2D (prefill and decode nodes), with per-request fallback on and off, and as many nodes that do both. Each
serves the same requests; printed are TTFT, ITL, goodput under an SLO, and each of them against the colocated cluster's.

Needs the programs (TANDEM_TEST_BIN names their folder) and nothing but Python's standard library. Runs on CPU nodes too.

usage: topologies.py [--devices cuda:0,cuda:1] [--model qwen2-7b] [--transport auto] [--requests N] [--time-scale S] [--json FILE]
  --devices     nodes are dealt out to these in turn; prefill nodes from the first on, decode nodes from the last on. With more
                nodes than cards, those on one card share its memory. `cpu` for a machine without cards.
  --model       chat-6m, smollm2 (TANDEM_SMOLLM2), qwen2-7b[:LAYERS] with made-up weights, or a path
  --time-scale  multiplies the trace's times; may be repeated, one table each
  --only        topologies to run, e.g. 1P1D,2P2D
  --within      starts no further cluster after this many seconds; what was left out is named
"""
import argparse
import json
import math
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from layout import harness, named_model, node  # noqa: E402

TRACE = harness.ROOT / "tests/data/traces/azure_conv_2023.csv"
TOPOLOGIES = ["1P1D", "2P1D", "1P2D", "2P2D"]


def cluster_config(options, model, prefill, decode, fallback):
    """`prefill` 0: nodes that do both. Without fallback no prompt is prefilled on a decode node as long as prefill nodes live."""
    devices = options.devices
    dealt_prefill = [devices[i % len(devices)] for i in range(prefill)]
    dealt_decode = [devices[-1 - i % len(devices)] for i in range(decode)]
    load = {d: (dealt_prefill + dealt_decode).count(d) for d in devices}
    kind = "auto" if prefill == 0 else options.transport

    def nodes(dealt):
        return [node(d, kind, options.memory_share / load[d], max_batch_tokens=options.batch_tokens,
                     max_sequences=options.sequences, threads=options.threads, chunk_tokens=options.chunk_tokens) for d in dealt]
    return {
        "model": model, "kv": {"format": options.kv_format, "memory": options.kv_memory},
        "router": {"dispatch": {"local_prefill_below": options.local_below if fallback else 0},
                   "admission": {"deadline": "3s" if fallback else "10m"}},
        "prefill": nodes(dealt_prefill), "decode": nodes(dealt_decode)}


def replay(options, cluster, time_scale, seed, requests):
    words = ["bench", "serve", "--url", cluster.url, "--trace", options.trace, "--requests", requests,
             "--time-scale", time_scale, "--length-scale", options.length_scale, "--max-prompt-tokens", options.max_prompt,
             "--max-output-tokens", options.max_output, "--slo-ttft-ms", options.slo_ttft_ms, "--slo-itl-ms", options.slo_itl_ms,
             "--seed", seed, "--json"]
    return json.loads(harness.tandem(*words, timeout=options.replay_timeout).stdout)


def ways(cluster):
    """How the router sent them: over a prefill node, or to the decode node itself and why."""
    out = {}
    for (name, labels), value in cluster.metrics().items():
        if name == "tandem_router_dispatch_total" and value:
            out[dict(labels)["way"]] = int(value)
    return out


def restart_router(cluster, config, nodes):
    """Another configuration for the router; the nodes stay as they are."""
    cluster.config = harness.merge(cluster.config, config)
    cluster.config_path.write_text(json.dumps(cluster.config, indent=1))
    before = cluster.restarts("router")
    cluster.kill("router")
    harness.wait_until(lambda: cluster.restarts("router") > before, 30, "another router")
    cluster.wait_ready()
    cluster.wait_nodes(nodes, 30)


def measure(options, folder, model, name, prefill, decode, fallbacks):
    """The rows of one topology: its nodes start once, each way of falling back has a router of its own."""
    begin = time.monotonic()
    rows = []
    config = cluster_config(options, model, prefill, decode, fallbacks[0])
    with harness.Cluster(folder / name.replace(" ", "-"), config, ready_timeout=300) as cluster:
        ready = time.monotonic() - begin
        for fallback in fallbacks:
            if fallback is not fallbacks[0]:
                restart_router(cluster, {"router": cluster_config(options, model, prefill, decode, fallback)["router"]},
                               prefill + decode)
            warm(options, cluster, prefill + decode, first=fallback is fallbacks[0])
            for time_scale in options.time_scale:  # new prompts each time, the same for every topology
                rows.append(one_row(options, cluster, name, prefill, fallback, time_scale, len(rows)))
                rows[-1]["seconds_to_ready"] = round(ready, 2)
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def warm(options, cluster, nodes, first):
    """Each node has computed, each pair has met; steps of the sizes that come later have been run once."""
    harness.tandem("bench", "serve", "--url", cluster.url, "--requests", 4 * nodes, "--concurrency", 2 * nodes,
                   "--prompt-tokens", 64, "--output-tokens", 4, "--json", timeout=120)
    if first and options.warm_requests:
        replay(options, cluster, min(options.time_scale), 1000, options.warm_requests)


def one_row(options, cluster, name, prefill, fallback, time_scale, seed):
    before, status = ways(cluster), cluster.status()["transfers"]
    row = row_of(options, name, prefill, fallback, time_scale, replay(options, cluster, time_scale, seed, options.requests))
    after, moved = ways(cluster), cluster.status()["transfers"]
    row["dispatch"] = {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}
    row["transport"] = moved["transport"] if prefill else None
    row["wire_bytes"] = moved["wire_bytes"] - status["wire_bytes"]
    return row


def row_of(options, name, prefill, fallback, time_scale, report):
    goodput = report["goodput"]
    return {"topology": name, "nodes": nodes_of(name), "fallback": fallback if prefill else None, "time_scale": time_scale,
            "sent": report["requests"]["sent"], "failed": report["requests"]["failed"], "seconds": report["duration_seconds"],
            "ttft_p50": report["ttft_seconds"]["p50"], "ttft_p99": report["ttft_seconds"]["p99"],
            "itl_p50": report["itl_seconds"]["p50"], "itl_p99": report["itl_seconds"]["p99"],
            "output_tokens_per_second": report["output_tokens_per_second"], "prompt_tokens": report["prompt_tokens"],
            "goodput_requests_per_second": goodput["requests_per_second"], "within_slo": goodput["share"],
            "lateness_p99": report["lateness_seconds"]["p99"]}


def nodes_of(name):
    return int(name[0]) + int(name[2]) if name[1] == "P" else int(name.split()[0])


RATIOS = {"ttft_p50": "less", "ttft_p99": "less", "itl_p50": "less", "itl_p99": "less", "goodput_requests_per_second": "more"}


def compare(rows):
    """Adds each row's figures over those of the colocated cluster of as many nodes at the same rate."""
    base = {(r["nodes"], r["time_scale"]): r for r in rows if r["fallback"] is None}
    for row in rows:
        peer = base.get((row["nodes"], row["time_scale"]))
        row["against_colocated"] = {}
        for key in RATIOS:
            mine, theirs = row[key], peer and peer[key]
            known = mine is not None and theirs is not None and theirs > 0 and row is not peer
            row["against_colocated"][key] = round(mine / theirs, 3) if known else None
    return rows


def text(value, scale=1.0, digits=1):
    return "-" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{value * scale:.{digits}f}"


def table(options, rows):
    head = ["topology", "fallback", "TTFT p50", "p99", "ITL p50", "p99 ms", "in SLO", "goodput/s", "tokens/s", "failed",
            "| to colocated: TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "goodput"]
    lines = []
    for time_scale in options.time_scale:
        lines.append(f"time scale {time_scale}, SLO: TTFT {options.slo_ttft_ms:g} ms and mean ITL {options.slo_itl_ms:g} ms")
        cells = [head]
        for r in (r for r in rows if r["time_scale"] == time_scale):
            ratio = r["against_colocated"]
            cells.append([r["topology"], {True: "on", False: "off", None: ""}[r["fallback"]], text(r["ttft_p50"], 1e3),
                          text(r["ttft_p99"], 1e3), text(r["itl_p50"], 1e3, 2), text(r["itl_p99"], 1e3, 2),
                          text(r["within_slo"], 100) + "%", text(r["goodput_requests_per_second"], 1, 2),
                          text(r["output_tokens_per_second"], 1, 0), str(r["failed"])] +
                         ["| " * (k == "ttft_p50") + text(ratio[k], 1, 2) for k in RATIOS])
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines += ["  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in cells]
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--model", default="qwen2-7b")
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--trace", default=str(TRACE))
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--warm-requests", type=int, default=150, help="of the trace, before anything is measured")
    parser.add_argument("--time-scale", type=float, action="append")
    parser.add_argument("--length-scale", type=float, default=1.0)
    parser.add_argument("--max-prompt", type=int, default=8192)
    parser.add_argument("--max-output", type=int, default=512)
    parser.add_argument("--slo-ttft-ms", type=float, default=500)
    parser.add_argument("--slo-itl-ms", type=float, default=25)
    parser.add_argument("--local-below", type=int, default=32, help="dispatch.local_prefill_below with fallback on")
    parser.add_argument("--only")
    parser.add_argument("--no-colocated", action="store_true", help="nothing to compare with, when time is short")
    parser.add_argument("--fallback", choices=["on", "off", "both"], default="both")
    parser.add_argument("--kv-format", default="auto")
    parser.add_argument("--kv-memory", default="0B")
    parser.add_argument("--memory-share", type=float, default=0.9, help="of a card's memory, for all nodes on it together")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--chunk-tokens", type=int, default=512, help="of a prompt in one step of any node")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each CPU node")
    parser.add_argument("--within", type=float, default=3600)
    parser.add_argument("--replay-timeout", type=float, default=600)
    parser.add_argument("--json")
    options = parser.parse_args()
    options.devices = options.devices.split(",")
    options.time_scale = options.time_scale or [1.0]
    options.only = options.only.split(",") if options.only else TOPOLOGIES
    unknown = [name for name in options.only if name not in TOPOLOGIES]
    if unknown:
        parser.error(f"unknown topology {unknown[0]}; there are {', '.join(TOPOLOGIES)}")
    return options


def main():
    options = parse()
    end = time.monotonic() + options.within
    fallbacks = {"on": [True], "off": [False], "both": [False, True]}[options.fallback]
    rows, problems = [], []
    with tempfile.TemporaryDirectory(prefix="tandem-topologies-") as name:
        folder = pathlib.Path(name)
        model = named_model(options.model, folder / "models")
        runs = []
        for count in sorted({nodes_of(t) for t in options.only}):
            if not options.no_colocated:
                runs.append((f"{count} colocated", 0, count, [True]))
            runs += [(t, int(t[0]), int(t[2]), fallbacks) for t in options.only if nodes_of(t) == count]
        for run in runs:
            what = run[0]
            if time.monotonic() > end:
                problems.append(f"{what}: left out, the time is up")
                continue
            try:
                rows += measure(options, folder, model, *run)
            except (AssertionError, OSError, ValueError, harness.subprocess.TimeoutExpired) as error:
                problems.append(f"{what}: {str(error)[-1500:]}")
    compare(rows)
    print(table(options, rows))
    for problem in problems:
        print(f"MISSING {problem}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"model": model["id"], "devices": options.devices, "trace": options.trace,
                                                          "options": {k: v for k, v in vars(options).items()}, "rows": rows,
                                                          "problems": problems}, indent=1))
    return 1 if problems or any(r["failed"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
