#!/usr/bin/env bash
# Runs everything that wants several GPUs, on one host with two or more and no network. The last line is
# `N passed, N failed, N skipped`; with fewer than two cards it is `0 passed, 0 failed, 1 skipped`.
#
# usage: tests/multi_gpu/run.sh [--build DIR] [--results DIR] [--no-bench] [--quick]
#   --build     build tree to take the programs from (default: build/release of this checkout)
#   --results   where logs and benches go (default: a new folder in /tmp)
#   --no-bench  leaves out the transfer bench
#   --quick     messages up to 64 MiB only, and one KV format
#
# NVLink multicast stays as the environment has it (NCCL_NVLS_ENABLE): programs that use it can put a host's GPUs out of service.
# Elsewhere than on the machine that built, as tests/gpu/run.sh says: install the component gpu-tests and start it there.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="$root/build/release" results="" bench=1 quick=0
need() { [ $# -ge 2 ] || { echo "run.sh: $1 needs a value (see --help)" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --build) need "$@"; build=$2; shift ;;
    --results) need "$@"; results=$2; shift ;;
    --no-bench) bench=0 ;;
    --quick) quick=1 ;;
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "run.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if [ -f "$root/CMakeLists.txt" ]; then
  bin="$build/bin" tests="$build/tests"
else
  bin="$root/bin" tests="$root/tests/bin" # an installed folder
fi
[ -x "$tests/gpu_transport_test" ] || { echo "run.sh: no gpu_transport_test in $tests: build target tandem_gpu_tests first" >&2; exit 2; }
if [ -z "$results" ]; then results=$(mktemp -d /tmp/tandem-multi-gpu-XXXXXX); fi
mkdir -p "$results" || exit 2
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
if [ "$cards" -lt 2 ]; then
  echo "skipped: this machine has $cards card(s), two are needed"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi

# Where NCCL and cuBLASLt lie on machines that have them for PyTorch, or from scripts/install-cuda.sh.
nvidia=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for folder in ${nvidia:+"$nvidia/cu13/lib" "$nvidia/nccl/lib"} \
  "${TANDEM_CUDA_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/cuda-13.0}"/nvidia/{cu13,nccl}/lib; do
  if [ -d "$folder" ]; then LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"; fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

passed=0 failed=0
# run_one NAME SECONDS COMMAND...: output to a log; shown when it fails.
run_one() {
  local name=$1 limit=$2 code=0
  shift 2
  timeout "$limit" "$@" >"$results/$name.log" 2>&1 </dev/null || code=$?
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1))
    echo "  ok      $name"
  else
    failed=$((failed + 1))
    echo "  FAILED  $name, exit code $code, log $results/$name.log"
    grep -E -A8 'Failure$|FAILED|error' "$results/$name.log" | head -40
  fi
}

echo "== links"
nvidia-smi topo -m 2>/dev/null | head -$((cards + 1))
echo "== two processes, GPU 0 and GPU 1: both directions, either side killed, a frozen receiver"
TANDEM_PEER_GPU=1 run_one transport 300 "$tests/gpu_transport_test" --gtest_filter='Kinds*'
if [ -x "$bin/tandem-router" ] && [ -f "$root/tests/integration/harness.py" ]; then
  echo "== clusters: prefill on GPU 0, decode on GPU 1, over each transport"
  quick_option=(); if [ "$quick" -eq 1 ]; then quick_option=(--quick); fi
  TANDEM_TEST_BIN="$bin" run_one clusters 600 python3 "$root/tests/multi_gpu/cluster_check.py" "${quick_option[@]}"
  grep -E '^(ok|FAILED|  )' "$results/clusters.log" | head -60
fi
if [ "$bench" -eq 1 ] && [ -x "$tests/multi_gpu_transport_bench" ]; then
  echo "== transfers by message size, against plain peer copies and plain NCCL sends"
  largest=1024; if [ "$quick" -eq 1 ]; then largest=64; fi
  run_one bench 300 "$tests/multi_gpu_transport_bench" --from 0 --to 1 --largest "$largest" --variants ipc,nccl
  cat "$results/bench.log"
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
