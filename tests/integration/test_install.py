"""cmake --install makes a folder that runs wherever it is moved, with nothing but glibc from the system."""
import json
import os
import re
import shutil
import subprocess

import pytest

import harness
from harness import CHAT_MODEL

SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv)\.so")

pytestmark = pytest.mark.skipif(harness.SANITIZED, reason="sanitizer builds are not installed")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    first = tmp_path_factory.mktemp("install") / "first"
    run = subprocess.run(["cmake", "--install", str(harness.BIN.parent), "--prefix", str(first)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    moved = first.parent / "somewhere else"
    shutil.move(first, moved)
    return moved


def clean_environment():
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def libraries(path, environment):
    out = subprocess.run(["ldd", str(path)], capture_output=True, text=True, env=environment).stdout
    found = re.findall(r"^\s*(\S+)(?: => (.+?))?(?: \(0x[0-9a-f]+\))?$", out, re.M)
    return [(name, path or name) for name, path in found]


@pytest.mark.parametrize("program", ["tandem", "tandem-router", "tandem-prefill", "tandem-decode"])
def test_only_glibc_comes_from_the_system(program, bundle):
    found = libraries(bundle / "bin" / program, clean_environment())
    assert len(found) > 3
    for name, path in found:
        base = os.path.basename(name)
        if not SYSTEM.match(base):
            assert path.startswith(str(bundle)) or str(bundle) in path, f"{base} comes from {path}"


@pytest.mark.parametrize("program", ["tandem", "tandem-router", "tandem-prefill", "tandem-decode"])
def test_no_code_runs_on_the_stack(program, bundle):
    headers = subprocess.run(["readelf", "-lW", str(bundle / "bin" / program)], capture_output=True, text=True, check=True).stdout
    stack, = [line.split() for line in headers.splitlines() if "GNU_STACK" in line]
    assert stack[-2] == "RW", headers


def test_it_generates(bundle):
    run = subprocess.run([str(bundle / "bin/tandem"), "generate", str(bundle / "models/chat-6m"), "--prompt", "I would like", "--max-tokens",
                          "8", "--json"], capture_output=True, text=True, env=clean_environment(), cwd="/")
    assert run.returncode == 0, run.stderr
    here = harness.tandem("generate", CHAT_MODEL, "--prompt", "I would like", "--max-tokens", 8, "--json")
    assert json.loads(run.stdout)["ids"] == json.loads(here.stdout)["ids"]


def test_it_serves_from_its_own_cluster_file(bundle, tmp_path):
    environment = {**clean_environment(), "TANDEM_ROUTER_HTTP_PORT": "0", "TANDEM_ROUTER_CONTROL_PORT": "0"}
    tandem = str(bundle / "bin/tandem")
    run_dir = str(tmp_path / "run")
    up = subprocess.run([tandem, "up", "--detach", str(bundle / "deploy/quickstart.yaml"), "--run-dir", run_dir], capture_output=True,
                        text=True, env=environment, timeout=600)
    assert up.returncode == 0, up.stderr
    try:
        chat = subprocess.run([tandem, "chat", "--run-dir", run_dir, "--stats", "--max-tokens", "12", "--ask",
                               "I would like a table for two at an Italian restaurant in San Jose, please."], capture_output=True,
                              text=True, env=environment, timeout=600)
        assert chat.returncode == 0, chat.stderr
        assert "on the wire" in chat.stdout
        assert re.search(r"transport +ucx .*shared memory", chat.stdout), chat.stdout
        pid = json.load(open(f"{run_dir}/decode-0.json"))["pid"]
        mapped = {line.rstrip("\n").split(maxsplit=5)[5] for line in open(f"/proc/{pid}/maps") if ".so" in line}
        outside = [m for m in mapped if not m.startswith(str(bundle)) and not SYSTEM.match(os.path.basename(m))]
        assert any("/lib/ucx/" in m for m in mapped), "UCX's modules come from the bundle"
        assert not outside, f"loaded from the system: {outside}"
    finally:
        subprocess.run([tandem, "down", "--run-dir", run_dir], env=environment, timeout=600)


def locked_crates():
    """Name and version of every crate in the lock file but our own."""
    lock = (harness.ROOT / "common/text/rust/Cargo.lock").read_text()
    return re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource = ', lock, re.M)


def test_licences_travel_along(bundle):
    licences = bundle / "share/licenses"
    assert (bundle / "LICENSE").exists() and (bundle / "models/README.md").exists()
    # A shared library's package, and what is compiled in from headers.
    for package in ["libyaml-cpp*", "libboost*-dev", "libcli11-dev", "libexpected-dev"]:
        assert list(licences.glob(f"{package}/copyright")), package
    listed = dict(line.split(": ", 1)[0].rsplit(" ", 1) for line in (licences / "rust/crates.txt").read_text().splitlines())
    for name in ["tokenizers", "minijinja", "onig_sys", "serde_json"]:
        versions = [version for crate, version in locked_crates() if crate == name]
        assert versions == [listed[name]]
        assert [p for p in (licences / f"rust/{name}-{versions[0]}").rglob("*") if p.is_file()], name
    assert (licences / f"rust/onig_sys-{listed['onig_sys']}/oniguruma/COPYING").exists(), "C code that a crate brings along"


def test_every_link_of_its_pages_leads_somewhere(bundle):
    pages = [p for p in bundle.rglob("*.md") if "share/licenses" not in str(p)]
    assert bundle / "README.md" in pages and bundle / "docs/operations.md" in pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{page.relative_to(bundle)} names {target}"
