#!/usr/bin/env python3
"""What a node says of its card's NVLinks on /metrics, and `tandem doctor` of how cards reach each other, against what the driver's
own tool says of both.

usage: links.py [--devices cuda:0,cuda:1]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from layout import harness, named_model, node, node_metrics  # noqa: E402


def driver_links(device):
    """(links that are up, bytes a second one way) by nvidia-smi."""
    run = subprocess.run(["nvidia-smi", "nvlink", "--status", "-i", device.split(":")[1]], capture_output=True, text=True, timeout=30)
    speeds = [float(s) for s in re.findall(r"Link \d+: ([0-9.]+) GB/s", run.stdout)]
    return len(speeds), sum(speeds) * 1e9


def driver_topology():
    """Rows of `nvidia-smi topo -m`, cards only: what is between each two of them; "X" on the diagonal."""
    run = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=True)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in run.stdout.splitlines()]
    rows = [line[1:] for line in lines if line and re.fullmatch(r"GPU\d+", line[0]) and "X" in line]
    return [row[:len(rows)] for row in rows]


def check_doctor():
    """How many pairs of cards doctor and driver tell differently; all of them are printed."""
    told = json.loads(harness.tandem("doctor", "--json", check=False).stdout)["topology"]
    wanted = driver_topology()
    rows = [[cell if i != j else "X" for j, cell in enumerate(row)] for i, row in enumerate(told)]
    good = rows == wanted and len(rows) > 0
    print(f"{'ok    ' if good else 'FAILED'} tandem doctor on how {len(rows)} cards reach each other: {rows}, the driver says {wanted}")
    return not good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    devices = parser.parse_args().devices.split(",")
    failures = int(check_doctor())
    with tempfile.TemporaryDirectory(prefix="tandem-links-") as name:
        folder = pathlib.Path(name)
        config = {"model": named_model("chat-6m", folder), "kv": {"memory": "64MiB"},
                  "prefill": [node(devices[0], "cuda_ipc", 0.1)], "decode": [node(devices[-1], "cuda_ipc", 0.1)]}
        with harness.Cluster(folder / "cluster", config, ready_timeout=60) as cluster:
            for device, role in [(devices[0], "prefill-0"), (devices[-1], "decode-0")]:
                harness.wait_until(lambda role=role: any(n == "tandem_gpu_readable_state" for n, _ in node_metrics(cluster, role)), 10,
                                   f"what {role} reads of its card")
                links = {(n, dict(labels).get("kind", "")): v for (n, labels), v in node_metrics(cluster, role).items() if "link" in n}
                up, speed = driver_links(device)
                got = links.get(("tandem_gpu_nvlink_active_count", "")), links.get(("tandem_gpu_nvlink_bandwidth_bytes_per_second", ""))
                good = got[0] == up and up > 0 and abs(got[1] - speed) <= 0.05 * speed
                failures += not good
                print(f"{'ok    ' if good else 'FAILED'} {role} on {device}: {got[0]:g} links up at {got[1] / 1e9:.1f} GB/s, "
                      f"the driver says {up} at {speed / 1e9:.1f} GB/s")
                for (metric, kind), value in sorted(links.items()):
                    print(f"       {metric}{' ' + kind if kind else ''} {value:g}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
