#!/usr/bin/env bash
# Builds Tandem and runs every test; those that want a GPU skip without one. The last line is `N passed, N failed, N skipped`.
#
# usage: ./test.sh [--quick] [--cuda] [--within MINUTES]
#   --quick   leaves out the sanitizer builds (ASan+UBSan: fuzzers and the integration suite; TSan: simulations)
#   --cuda    installs a private CUDA toolkit if there is none and compiles all CUDA code (a GPU is not needed)
#   --within  leaves out those sanitizer runs for which less than their share of MINUTES is left, and says so
set -uo pipefail
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$TANDEM_ROOT"
. scripts/env.sh

quick=0 cuda=0 within=""
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=1 ;;
    --cuda) cuda=1 ;;
    --within)
      within="${2:-}"
      case "$within" in "" | *[!0-9]*) echo "test.sh: --within takes a whole number of minutes" >&2; exit 2 ;; esac
      shift ;;
    -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$TANDEM_ROOT/test.sh"; exit 0 ;;
    *) echo "test.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

jobs=$(nproc)
results="$TANDEM_ROOT/build/test-results"
rm -rf "$results"
mkdir -p "$results"
started=$SECONDS
step() { printf '\n== [%4ds] %s\n' $((SECONDS - started)) "$*"; }
# A step outside ctest (install, build) that fails counts as one failed test and is named at the end.
broken() { echo "$1" >>"$results/broken-steps"; printf 'FAILED: %s\n' "$1"; }
finish() {
  step "summary"
  python3 tests/summary.py "$results"
  exit $?
}

step "packages"
scripts/install-packages.sh --tests || { broken "scripts/install-packages.sh --tests"; finish; }
. scripts/env.sh
release_options=()
if [ "$cuda" -eq 1 ]; then
  step "CUDA toolkit"
  scripts/install-cuda.sh || { broken "scripts/install-cuda.sh"; finish; }
  release_options=(-DTANDEM_CUDA=ON)
fi

build() { # build PRESET [TARGET...]
  local preset=$1 options=()
  shift
  [ "$preset" != release ] || options=(${release_options[@]+"${release_options[@]}"})
  cmake --preset "$preset" ${options[@]+"${options[@]}"} >"$results/configure-$preset.log" 2>&1 ||
    { tail -30 "$results/configure-$preset.log"; broken "cmake --preset $preset"; return 1; }
  cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"} || { broken "build of preset $preset"; return 1; }
}

# run_ctest PRESET NAME ARG...: results go to $results/NAME, one file per GoogleTest program and pytest run besides.
run_ctest() {
  local preset=$1 name=$2
  shift 2
  mkdir -p "$results/$name"
  GTEST_OUTPUT="xml:$results/$name/" TANDEM_TEST_RESULTS="$results/$name" \
    TANDEM_TEST_BIN="$TANDEM_ROOT/build/$preset/bin" \
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --output-junit "$results/$name/ctest.xml" "$@" </dev/null
  [ -s "$results/$name/ctest.xml" ] || broken "ctest of $name left no results"
}

step "build (release)"
build release || finish

step "real model for the tests that want one"
if model=$(scripts/fetch-smollm2.sh); then
  export TANDEM_SMOLLM2="$model"
else
  echo "SmolLM2 could not be fetched; the tests that need it are skipped and say so"
fi

step "lint, unit and simulation tests, fuzzers (release)"
run_ctest release release -LE 'integration|bench|gpu|multi_gpu' -j "$jobs"

if grep -q tandem_kernels_cuda build/release/build.ninja; then
  step "GPU tests (release)"
  run_ctest release gpu -L gpu
fi

step "integration tests (release)"
run_ctest release integration -L integration

# The sanitizer runs, the cheapest first. `seconds_left` is how long one may still take.
seconds_left() { if [ -n "$within" ]; then echo $((within * 60 - (SECONDS - started))); else echo 100000; fi; }
left_out() { echo "$1: left out ($2)" | tee -a "$results/skipped-steps"; }

# sanitize PRESET NAME RUN_SECONDS "TARGETS" CTEST_ARG...: builds and runs if there is time for both. The run itself is not cut
# short: RUN_SECONDS, what it takes on two busy cores, must be left when the build is done.
sanitize() {
  local preset=$1 name=$2 need=$3 targets=$4 left
  shift 4
  left=$(($(seconds_left) - need))
  [ "$left" -gt 60 ] || { left_out "$name" "$((SECONDS - started)) s of $within min are gone"; return; }
  step "build: $name"
  cmake --preset "$preset" >"$results/configure-$preset.log" 2>&1 ||
    { tail -30 "$results/configure-$preset.log"; broken "cmake --preset $preset"; return; }
  # shellcheck disable=SC2086  # a list of targets
  timeout "$left" cmake --build "build/$preset" -j "$jobs" --target $targets
  case $? in
    0) ;;
    124) left_out "$name" "its build did not end within $left s; the next run goes on from there"; return ;;
    *) broken "build of preset $preset"; return ;;
  esac
  step "$name"
  # UCX's memory hooks patch the allocator, which is the sanitizer's.
  UCX_MEM_MMAP_HOOK_MODE=none run_ctest "$preset" "$preset-${name%% *}" "$@"
}

if [ "$quick" -eq 1 ]; then
  left_out "sanitizer runs" "--quick"
else
  sanitize asan-ubsan "fuzzers (ASan + UBSan)" 60 tandem_fuzzers -L fuzz -j "$jobs"
  sanitize tsan "simulations (TSan)" 120 tandem_sims -L sim -j "$jobs"
  sanitize asan-ubsan "integration tests (ASan + UBSan)" 360 \
    "tandem tandem-router tandem-prefill tandem-decode tandem_integration_tests" -L integration
fi
finish
