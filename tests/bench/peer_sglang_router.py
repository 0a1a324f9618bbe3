#!/usr/bin/env python3
"""What a router adds to a request's latency: Tandem's and sglang-router's, in one run under the same load.

Load generator, router and what answers behind it are three processes on the same cores. The load is an open loop of chats that are
answered at once with one token (router_load_bench drive). Behind sglang-router stands an HTTP worker that answers at once (`backend`),
behind tandem-router a made-up decode node on the control channel (`node`). What the worker takes without any router is measured in the
same run and subtracted. Tandem tokenizes each request, sglang-router does not.

Needs `pip install sglang-router==0.3.2`; a benchmark only, nothing depends on it.

  peer_sglang_router.py --bin build/release [--sglang-python venv/bin/python] [--rates 1000,2000,5000] [--seconds 5] [--rounds 3]
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


class Processes:
    def __init__(self):
        self.all = []

    def start(self, *command):
        self.all.append(subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.all):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.all:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def drive(args, url, rate):
    out = subprocess.run([args.bin / "bench/router_load_bench", "drive", url, str(rate), str(args.seconds)], check=True,
                         capture_output=True, text=True).stdout
    return json.loads(out)


def without_router(args, rate):
    with Processes() as processes:
        port = free_port()
        processes.start(args.bin / "bench/router_load_bench", "backend", port)
        wait_for(f"http://127.0.0.1:{port}/health")
        return drive(args, f"http://127.0.0.1:{port}", rate)


def with_sglang(args, rate):
    with Processes() as processes:
        worker, front = free_port(), free_port()
        processes.start(args.bin / "bench/router_load_bench", "backend", worker)
        wait_for(f"http://127.0.0.1:{worker}/health")
        processes.start(args.sglang_python, "-m", "sglang_router.launch_router", "--worker-urls", f"http://127.0.0.1:{worker}",
                        "--host", "127.0.0.1", "--port", front, "--policy", "round_robin", "--log-level", "error",
                        "--prometheus-port", free_port())
        wait_for(f"http://127.0.0.1:{front}/health")
        drive(args, f"http://127.0.0.1:{front}", 200)
        return drive(args, f"http://127.0.0.1:{front}", rate)


def with_tandem(args, rate):
    with Processes() as processes, tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "cluster.yaml"
        config.write_text(json.dumps({"model": {"path": str(ROOT / "models/chat-6m")},
                                      "router": {"http": {"port": 0}, "control": {"port": 0}}}))
        processes.start(args.bin / "bin/tandem-router", "--config", config, "--run-dir", folder)
        published = pathlib.Path(folder) / "router.json"
        end = time.monotonic() + 30
        while not published.exists() and time.monotonic() < end:
            time.sleep(0.05)
        endpoints = json.loads(published.read_text())["endpoints"]
        processes.start(args.bin / "bench/router_load_bench", "node", endpoints["control"].rsplit(":", 1)[1])
        wait_for(f"http://{endpoints['http']}/health/ready")
        drive(args, f"http://{endpoints['http']}", 200)
        return drive(args, f"http://{endpoints['http']}", rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--sglang-python", default=sys.executable)
    parser.add_argument("--rates", default="1000,2000,5000")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    kinds = {"no router": without_router, "sglang-router": with_sglang, "tandem-router": with_tandem}
    for rate in (int(r) for r in args.rates.split(",")):
        runs = {name: [] for name in kinds}
        for _ in range(args.rounds):
            for name, run in kinds.items():
                runs[name].append(run(args, rate))
        base = {q: statistics.median(r[q] for r in runs["no router"]) for q in ("p50_us", "p99_us")}
        for name, results in runs.items():
            p50, p99 = (statistics.median(r[q] for r in results) for q in ("p50_us", "p99_us"))
            print(f"{rate:6} req/s  {name:14} achieved {statistics.median(r['achieved'] for r in results):6.0f}  errors "
                  f"{sum(r['errors'] for r in results):4}  p50 {p50:7.0f} us (+{p50 - base['p50_us']:.0f})  p99 {p99:7.0f} us "
                  f"(+{p99 - base['p99_us']:.0f})", flush=True)


if __name__ == "__main__":
    main()
