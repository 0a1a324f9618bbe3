#!/usr/bin/env python3
"""What a node says of its card's NVLinks on /metrics, against what the driver's own tool says of them.

usage: links.py [--devices cuda:0,cuda:1]
"""
import argparse
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    devices = parser.parse_args().devices.split(",")
    failures = 0
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
