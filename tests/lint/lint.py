#!/usr/bin/env python3
"""Rules of the source tree that no compiler checks; docs/architecture.md explains the table.

usage: lint.py ROOT [--format]      --format checks clang-format as well (needs clang-format 14)

One line per finding, `file:line: what and why`; exit code 1 when there is any.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Folder (longest match wins) -> folders it may include from. Its own folder is always allowed.
BASE = ["common/base"]
LEVEL1 = ["common/config", "common/obs", "common/proto", "common/kv", "common/text"]
# What runs on devices: never the router.
CUDA = ["common/cuda"]
LEVEL2 = ["common/net", "common/transport", "common/model"]
NODE = BASE + LEVEL1 + LEVEL2 + CUDA + ["common/engine", "common/node"]
ALLOWED = {
    "common/base": [],
    "common/config": BASE,
    "common/obs": BASE,
    "common/proto": BASE,
    "common/kv": BASE,
    "common/text": BASE,
    "common/cuda": BASE,
    "common/net": BASE + LEVEL1,
    "common/transport": BASE + LEVEL1,
    "common/transport/cuda_ipc": BASE + LEVEL1 + CUDA + ["common/transport", "kernels"],
    "common/transport/nccl": BASE + LEVEL1 + CUDA + ["common/transport", "common/transport/cuda_ipc", "kernels"],
    "common/model": BASE + LEVEL1,
    "kernels": BASE + ["common/kv"],
    "common/engine": BASE + LEVEL1 + LEVEL2 + CUDA + ["kernels"],
    "common/node": NODE,
    "common/preflight": NODE,
    "prefill_node": NODE,
    "decode_node": NODE,
    # Never engine, kernels or CUDA: the router runs on machines without accelerators.
    "router": BASE + LEVEL1 + LEVEL2,
    "tools": NODE + ["common/preflight", "kernels", "tools/run_dir", "tools/client", "tools/supervise"],
    "tools/run_dir": BASE + LEVEL1,
    "tools/client": BASE + LEVEL1 + ["common/net", "tools/run_dir"],
    "tools/supervise": BASE + LEVEL1 + ["tools/run_dir", "tools/client"],
}
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
MAX_LINES = 600
LINE_COUNTED = SOURCE_SUFFIXES | {".py", ".sh", ".proto", ".cmake", ".rs", ".js", ".mjs", ".html"}
SKIPPED_FOLDERS = {"build", "dist", ".git", ".cache", "run", "target", "node_modules", "__pycache__", ".venv"}

# (pattern on code without comments, where it may stand, why)
CONFINED = [
    (re.compile(r'#include\s*[<"]uc[pst]/'), ("common/transport/ucx/",), "UCX headers stay in common/transport/ucx"),
    (re.compile(r'#include\s*[<"](cuda|nccl|cublas|cudnn|nvml|nvtx)'), ("kernels/cuda/", "common/cuda/", "common/transport/cuda_ipc/",
     "common/transport/nccl/", "common/engine/cuda/", "tests/gpu/", "tests/multi_gpu/", "tests/support/fake_driver/"), "CUDA headers stay in kernels and CUDA folders"),
    (re.compile(r'#include\s*[<"]yaml-cpp/'), ("common/config/", "tests/"), "yaml-cpp stays in common/config"),
    (re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b"), ("common/config/", "common/base/piped_child.cc", "tests/"),  # hands it on
     "the environment is read in common/config only; take an Environment or a setting"),
    (re.compile(r"\b(steady|system|high_resolution)_clock\b"), ("common/base/clock.cc",),
     "time comes from Clock only"),
]
FOLDERS_WITH_README = re.compile(r"^(common/[a-z_]+|kernels/[a-z_]+|router|prefill_node|decode_node|tools)$")


def source_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            yield path.relative_to(root).as_posix(), path


def strip_comments(text):
    """Blanks comments and the inside of string literals, keeping line numbers."""
    pattern = re.compile(
        r'R"([^(\s]*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*(?:.|\n)*?\*/')

    def blank(match):
        token = match.group(0)
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        return token if token.startswith('"') and "\n" not in token else re.sub(r"[^\n]", " ", token)

    return pattern.sub(blank, text)


def folder_of(path):
    best = ""
    for folder in ALLOWED:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return best


def check_includes(path, code, root, report):
    own = folder_of(path)
    for number, line in enumerate(code.split("\n"), 1):
        match = re.match(r'\s*#include\s*"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        configured = (root / (target + ".in")).exists()
        generated = configured or target.endswith(".pb.h") and (root / target.replace(".pb.h", ".proto")).exists()
        if not generated and not (root / target).exists():
            report(path, number, f'"{target}": includes are relative to the repository root')
            continue
        other = folder_of(target)
        if own and other and other != own and other not in ALLOWED[own]:
            report(path, number, f"{own} must not include {other} (design: dependencies point one way)")
        if own and target.startswith("tests/"):
            report(path, number, "production code must not include tests")


def switch_bodies(code):
    for match in re.finditer(r"\bswitch\s*\(", code):
        start = code.find("{", match.end())
        depth = 0
        for at in range(start, len(code)):
            if code[at] == "{":
                depth += 1
            elif code[at] == "}":
                depth -= 1
                if depth == 0:
                    # Protobuf's enums of oneofs have members that nobody handles.
                    if "_case()" not in code[match.start():start]:
                        yield start, code[start:at]
                    break


def check_switches(path, code, report):
    for start, body in switch_bodies(code):
        default = re.search(r"\bdefault\s*:", body)
        if default and re.search(r"\bcase\s+(?:\w+::)*k[A-Z]\w*\s*:", body):
            line = code.count("\n", 0, start + default.start()) + 1
            report(path, line, "a switch over an enum has no default: the compiler then names forgotten cases")


def check_file(path, full, root, report):
    suffix = full.suffix
    if suffix not in LINE_COUNTED:
        return
    text = full.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_LINES:
        report(path, MAX_LINES, f"{lines} lines; split it by topic: at most {MAX_LINES}")
    if suffix not in SOURCE_SUFFIXES:
        return
    if suffix in (".h", ".cuh") and "#pragma once" not in text:
        report(path, 1, "header without #pragma once")
    code = strip_comments(text)
    check_includes(path, code, root, report)
    check_switches(path, code, report)
    for number, line in enumerate(code.split("\n"), 1):
        for pattern, places, why in CONFINED:
            if pattern.search(line) and not path.startswith(places):
                report(path, number, why)


def check_readmes(root, report):
    for folder in sorted(root.glob("**/CMakeLists.txt")):
        name = folder.parent.relative_to(root).as_posix()
        if FOLDERS_WITH_README.match(name) and not (folder.parent / "README.md").exists():
            report(name + "/README.md", 1, "each folder says what it is, on which thread, and how long things live")


def lint(root):
    findings = []

    def report(path, line, message):
        findings.append(f"{path}:{line}: {message}")

    for path, full in source_files(root):
        check_file(path, full, root, report)
    check_readmes(root, report)
    return findings


def find_clang_format():
    """Version 14 wherever it is called so: other versions lay out some constructs differently."""
    for name in ("clang-format-14", "clang-format"):
        program = shutil.which(name)
        if program and " 14." in subprocess.run([program, "--version"], capture_output=True, text=True).stdout:
            return program
    return None


def check_format(root):
    program = find_clang_format()
    if not program:
        print("SKIPPED: clang-format 14 is not installed (scripts/install-packages.sh --tests installs it)")
        return 77
    files = [str(full) for path, full in source_files(root) if full.suffix in SOURCE_SUFFIXES]
    run = subprocess.run([program, "--dry-run", "--Werror", *files], capture_output=True, text=True, cwd=root)
    bad = sorted({m.group(1) for m in re.finditer(r"^(\S+?):\d+:\d+: error: code should be clang-formatted",
                                                 run.stderr, re.M)})
    for name in bad:
        print(f"{os.path.relpath(name, root)}:1: not formatted; run {program} -i on it")
    if run.returncode and not bad:
        print(run.stderr)
    return 1 if run.returncode else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--format", action="store_true")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.format:
        return check_format(root)
    findings = lint(root)
    print("\n".join(findings) if findings else "no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
