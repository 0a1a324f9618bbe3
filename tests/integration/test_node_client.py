"""The official Node client against the running cluster."""
import hashlib
import json
import shutil
import subprocess

import pytest

import harness

SOURCE = harness.ROOT / "tests/integration/node"


@pytest.fixture(scope="module")
def client_folder():
    """node_modules as package-lock.json says, kept in .cache; installed once."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no Node.js (scripts/install-packages.sh --tests installs it)")
    lock = (SOURCE / "package-lock.json").read_bytes()
    folder = harness.ROOT / ".cache" / f"node-client-{hashlib.sha256(lock).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(SOURCE / name, folder / name)
    if not (folder / "ready").exists():
        install = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, capture_output=True,
                                 text=True, stdin=subprocess.DEVNULL, timeout=600)
        if install.returncode != 0:
            pytest.skip(f"npm ci failed (no network?): {install.stderr.strip()[-200:]}")
        (folder / "ready").touch()
    return folder


def test_node_client(cluster, client_folder):
    run = subprocess.run(["node", "client.mjs", cluster.url, cluster.model_id], cwd=client_folder, capture_output=True,
                         text=True, timeout=120 * harness.SLOWDOWN)
    assert run.returncode == 0, run.stderr
    out = json.loads(run.stdout)
    assert out["models"] == [cluster.model_id]
    assert out["streamed"] == out["whole"] and out["whole"]
    assert out["usage"]["completion_tokens"] == out["wholeUsage"]["completion_tokens"]
    assert out["finish"] in ("stop", "length")
    assert out["error"] == {"name": "BadRequestError", "status": 400, "param": "top_p"}
    assert out["pieces"] == 3
    cluster.wait_idle()
