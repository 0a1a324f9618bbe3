#!/usr/bin/env python3
"""Every script answers --help with its own header, whole and nothing else, wherever it is called from."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCED = {"scripts/env.sh"}
TAKES_ANY = {"tests/integration/run.sh"}  # arguments go to pytest


def scripts():
    found = []
    for folder in (".", "scripts", "tests/*"):
        found += [p for p in ROOT.glob(f"{folder}/*.sh") if str(p.relative_to(ROOT)) not in SOURCED]
    return sorted(found)


def header(script):
    lines = []
    for line in script.read_text().split("\n")[1:]:
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines) + "\n"


def run(script, argument):
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([os.path.relpath(script, folder), argument], cwd=folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60)


class Scripts(unittest.TestCase):
    def test_help_is_the_header(self):
        self.assertGreater(len(scripts()), 7)
        for script in scripts():
            with self.subTest(script.relative_to(ROOT)):
                shown = run(script, "--help")
                self.assertEqual((shown.returncode, shown.stderr), (0, ""))
                self.assertEqual(shown.stdout, header(script))
                self.assertIn(f"usage: {script.relative_to(ROOT)}", shown.stdout.replace("./", ""))

    def test_an_unknown_option_is_refused(self):
        for script in scripts():
            if str(script.relative_to(ROOT)) in TAKES_ANY:
                continue
            with self.subTest(script.relative_to(ROOT)):
                refused = run(script, "--nonsense")
                self.assertEqual((refused.returncode, refused.stdout), (2, ""))
                self.assertIn("--nonsense", refused.stderr)


if __name__ == "__main__":
    unittest.main()
