#!/usr/bin/env bash
# Runs the integration suite against the programs in TANDEM_TEST_BIN (default: build/release/bin).
# Python packages come from requirements.txt (hashed) and are kept in .cache.
#
# usage: tests/integration/run.sh [ARGUMENT OF PYTEST ...], such as `-k chat` or tests/integration/test_cli.py
set -euo pipefail
case "${1:-}" in -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;; esac
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
export TANDEM_TEST_BIN="${TANDEM_TEST_BIN:-$root/build/release/bin}"
[ -x "$TANDEM_TEST_BIN/tandem" ] || { echo "no programs in $TANDEM_TEST_BIN: build them first" >&2; exit 1; }

key=$(cat "$here/requirements.txt" <(python3 --version) | sha256sum | cut -c1-16)
venv="$root/.cache/test-venv-$key"
if [ ! -f "$venv/ready" ]; then
  rm -rf "$venv"
  mkdir -p "$root/.cache"
  if ! { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes \
      --only-binary :all: -r "$here/requirements.txt"; } >&2 </dev/null; then
    echo "SKIPPED: the test packages cannot be installed (no network?)"
    exit 77
  fi
  touch "$venv/ready"
fi
results=()
if [ -n "${TANDEM_TEST_RESULTS:-}" ]; then results=(--junitxml "$TANDEM_TEST_RESULTS/integration.xml"); fi
# Other people's TANDEM_ settings must not leak into the clusters that the tests start.
for variable in $(compgen -e | grep '^TANDEM_' | grep -v -e '^TANDEM_TEST_' -e '^TANDEM_SMOLLM2$' || true); do unset "$variable"; done
exec "$venv/bin/python" -m pytest -p no:cacheprovider -rfEs --tb=short ${results[@]+"${results[@]}"} -c "$here/pytest.ini" \
  --rootdir "$here" "${@:-$here}"
