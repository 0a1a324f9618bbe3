#!/usr/bin/env python3
"""Prefill and decode rates of llama.cpp and of Tandem's CPU engine on the same GGUF file, alternating in one run.

Needs `pip install llama-cpp-python==0.3.36` (compiles for a few minutes); a benchmark only, nothing depends on it.

  peer_llama_cpp.py MODEL.gguf --bench build/release/bench/cpu_bench [--threads 2] [--rounds 3]
"""
import argparse
import re
import statistics
import subprocess
import time


def llama_rates(llama, prompt, decode):
    tokens = [(i * 7919 + 13) % llama.n_vocab() for i in range(prompt)]
    llama.reset()
    start = time.perf_counter()
    llama.eval(tokens)
    prefill = prompt / (time.perf_counter() - start)
    llama.reset()
    llama.eval(tokens[:128])
    times = []
    for i in range(decode):
        start = time.perf_counter()
        llama.eval(tokens[i:i + 1])
        times.append(time.perf_counter() - start)
    return prefill, 1 / statistics.median(times)


def tandem_rates(args, extra):
    out = subprocess.run(
        [args.bench, "--model", args.model, "--model-only", "--threads", str(args.threads), "--rounds", "2",
         "--prefill", str(args.prompt), "--decode", str(args.decode), "--context", "128"] + extra,
        check=True, capture_output=True, text=True).stdout
    rates = [float(m) for m in re.findall(r"(\d+) tok/s", out)]
    ratio = re.search(r"decode .*?(\d\.\d\d)  \d+ tok/s", out)
    return rates[0], rates[1], float(ratio.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--bench", required=True, help="the cpu_bench binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--isa", action="append", help="also run Tandem with these kernels", default=[])
    args = parser.parse_args()

    import llama_cpp
    variants = [[]] + [["--isa", isa] for isa in args.isa]
    peer, ours = [], [[] for _ in variants]
    for i in range(args.rounds):
        # A fresh instance each round, gone before Tandem runs: its threads must not compete.
        llama = llama_cpp.Llama(args.model, n_ctx=1024, n_batch=args.prompt, n_ubatch=args.prompt,
                                n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
        llama_rates(llama, 64, 4)
        peer.append(llama_rates(llama, args.prompt, args.decode))
        llama.close()
        for rates, extra in zip(ours, variants):
            rates.append(tandem_rates(args, extra))
        print(f"round {i + 1}: llama.cpp {peer[-1][0]:.0f} / {peer[-1][1]:.0f}, tandem "
              + ", ".join(f"{r[-1][0]:.0f} / {r[-1][1]:.0f}" for r in ours) + " tok/s (prefill / decode)")

    p, d = (statistics.median(r[i] for r in peer) for i in range(2))
    print(f"{'':24} {'prefill':>10} {'ratio':>6} {'decode':>10} {'ratio':>6} {'of read stream':>15}")
    print(f"{'llama.cpp':24} {p:10.1f} {1:6.2f} {d:10.1f} {1:6.2f}")
    for rates, extra in zip(ours, variants):
        tp, td, stream = (statistics.median(r[i] for r in rates) for i in range(3))
        print(f"{'tandem ' + (extra[-1] if extra else '(best)'):24} {tp:10.1f} {tp / p:6.2f} {td:10.1f} {td / d:6.2f} "
              f"{stream:15.2f}")


if __name__ == "__main__":
    main()
