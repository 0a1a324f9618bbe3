#!/usr/bin/env python3
"""No crate of the lock file wants a newer Rust than the one that Cargo.toml promises and the set-up installs.

usage: rust_version.py ROOT CARGO      after a build, which brought the crates here
"""
import json
import pathlib
import re
import subprocess
import sys


def version(text):
    return tuple(int(part) for part in text.split("."))[:2]


def main():
    root, cargo = pathlib.Path(sys.argv[1]), sys.argv[2]
    manifest = root / "common/text/rust/Cargo.toml"
    promised = re.search(r'^rust-version = "(.+)"', manifest.read_text(), re.M)[1]
    findings = []
    for path, pattern in [("scripts/install-packages.sh", r"^rust_minimum=(\d+)"), ("common/text/CMakeLists.txt", r"VERSION_LESS 1\.(\d+)")]:
        minor = re.search(pattern, (root / path).read_text(), re.M)[1]
        if version(f"1.{minor}") != version(promised):
            findings.append(f"{path}: wants Rust 1.{minor}, Cargo.toml promises {promised}")
    metadata = subprocess.run([cargo, "metadata", "--locked", "--offline", "--format-version", "1", "--manifest-path", manifest,
                               "--filter-platform", "x86_64-unknown-linux-gnu"], capture_output=True, text=True)
    if metadata.returncode != 0:
        print("skipped: the crates are not here:", metadata.stderr.strip().splitlines()[-1])
        return 77
    for package in json.loads(metadata.stdout)["packages"]:
        if version(package["rust_version"] or "1.0") > version(promised):
            findings.append(f"Cargo.lock: {package['name']} {package['version']} wants Rust {package['rust_version']}, Cargo.toml promises "
                            f"{promised}; cargo update -p {package['name']} --precise an older version")
    print("\n".join(findings) or "no findings")
    return 1 if findings else 0


sys.exit(main())
