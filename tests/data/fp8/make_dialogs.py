"""Writes dialogs.json: conversations of tests/data/eval/dialog.jsonl as chat-6m's tokens, at most 240 each. Run once; tests read the file.

usage: make_dialogs.py TANDEM     (the program, which only tokenizes here)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
prompts = []
with tempfile.NamedTemporaryFile("w", suffix=".json") as chat:
    for line in (ROOT / "tests/data/eval/dialog.jsonl").read_text().splitlines()[:24]:
        chat.seek(0)
        chat.truncate()
        chat.write(line)
        chat.flush()
        out = subprocess.run([sys.argv[1], "tokenize", ROOT / "models/chat-6m", "--chat", chat.name, "--no-generation-prompt", "--json"],
                             capture_output=True, check=True, text=True).stdout
        prompts.append(json.loads(out)["ids"][:240])
(ROOT / "tests/data/fp8/dialogs.json").write_text(json.dumps({"prompts": prompts}) + "\n")
