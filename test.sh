#!/usr/bin/env bash
# Builds Tandem and runs every test; those that want a GPU skip without one. The last line is `N passed, N failed, N skipped`.
#
# usage: ./test.sh [--quick] [--cuda]
#   --quick   leaves out the sanitizer builds (ASan+UBSan: fuzzers and the integration suite; TSan: simulations)
#   --cuda    installs a private CUDA toolkit if there is none and compiles all CUDA code (a GPU is not needed)
set -uo pipefail
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$TANDEM_ROOT"
. scripts/env.sh

quick=0 cuda=0
for argument in "$@"; do
  case "$argument" in
    --quick) quick=1 ;;
    --cuda) cuda=1 ;;
    -h | --help) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "test.sh: unknown option $argument (see --help)" >&2; exit 2 ;;
  esac
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

if [ "$quick" -eq 1 ]; then
  echo "sanitizer runs: left out (--quick)" | tee -a "$results/skipped-steps"
else
  step "build (ASan + UBSan)"
  if build asan-ubsan tandem tandem-router tandem-prefill tandem-decode tandem_integration_tests tandem_fuzzers; then
    step "fuzzers (ASan + UBSan)"
    run_ctest asan-ubsan asan-fuzz -L fuzz -j "$jobs"
    step "integration tests (ASan + UBSan)"
    run_ctest asan-ubsan asan-integration -L integration
  fi
  step "build (TSan)"
  if build tsan tandem_sims; then
    step "simulations (TSan)"
    run_ctest tsan tsan-sim -L sim -j "$jobs"
  fi
fi
finish
