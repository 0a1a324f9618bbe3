#!/usr/bin/env bash
# Runs everything that wants a card, on a machine with one and no network. The last line is `N passed, N failed, N skipped`.
#
# usage: tests/gpu/run.sh [--build DIR] [--results DIR] [--sanitize] [--no-bench] [--filter REGEX]
#   --build     build tree to take the programs from (default: build/release of this checkout)
#   --results   where logs, reports and benches go (default: a new folder in /tmp)
#   --sanitize  also runs the kernel tests, on fewer and smaller problems (TANDEM_TEST_SMALL), under compute-sanitizer:
#               memcheck, racecheck, initcheck (minutes)
#   --no-bench  leaves out the benches
#   --filter    only test programs whose names match
#
# Elsewhere than on the machine that built: make a folder that runs anywhere, copy it there and start its tests/gpu/run.sh:
#   cmake --install build/release --prefix DIR && cmake --install build/release --prefix DIR --component gpu-tests --strip
# cuBLASLt and NCCL are taken from LD_LIBRARY_PATH or TANDEM_GPU_LIBRARIES, else from PyTorch's or the private toolkit's folder if
# they are found there.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

build="$root/build/release" results="" sanitize=0 bench=1 filter=.
need() { [ $# -ge 2 ] || { echo "run.sh: $1 needs a value (see --help)" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --build) need "$@"; build=$2; shift ;;
    --results) need "$@"; results=$2; shift ;;
    --sanitize) sanitize=1 ;;
    --no-bench) bench=0 ;;
    --filter) need "$@"; filter=$2; shift ;;
    -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if [ -f "$root/CMakeLists.txt" ]; then
  bin="$build/bin" tests="$build/tests"
else
  bin="$root/bin" tests="$root/tests/bin" # an installed folder
fi
[ -d "$tests" ] || { echo "run.sh: no test programs in $tests: build target tandem_gpu_tests first" >&2; exit 2; }
if [ -z "$results" ]; then results=$(mktemp -d /tmp/tandem-gpu-XXXXXX); fi
mkdir -p "$results/gpu" || exit 2
results=$(cd "$results" && pwd)
export TANDEM_TEST_DATA="$root/tests/data"

# Where cuBLASLt and NCCL lie on machines that have them for PyTorch, or from scripts/install-cuda.sh.
nvidia=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for folder in ${nvidia:+"$nvidia/cu13/lib" "$nvidia/nccl/lib" "$nvidia/cudnn/lib"} \
  "${TANDEM_CUDA_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/cuda-13.0}"/nvidia/{cu13,nccl}/lib; do
  if [ -d "$folder" ]; then LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"; fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

started=$SECONDS
step() { printf '\n== [%4ds] %s\n' $((SECONDS - started)) "$*"; }
# record NAME STATUS SECONDS: one line for tests/summary.py.
record() { echo "<testcase name=\"$1\" status=\"$2\" time=\"$3\">$([ "$2" = run ] || echo '<failure/>')</testcase>" >>"$results/gpu/cases"; }
: >"$results/gpu/cases"

# run_one NAME SECONDS COMMAND...: output to a log; shown when it fails.
run_one() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  timeout "$limit" "$@" >"$results/gpu/$name.log" 2>&1 </dev/null || code=$?
  local skipped=""
  grep -q '\[  SKIPPED \]' "$results/gpu/$name.log" && skipped=" (skips, see below)"
  if [ "$code" -eq 0 ]; then
    record "$name" run $((SECONDS - begin))
    printf '  ok      %-40s %4d s%s\n' "$name" $((SECONDS - begin)) "$skipped"
  else
    record "$name" fail $((SECONDS - begin))
    printf '  FAILED  %-40s %4d s, exit code %d, log %s\n%s\n' "$name" $((SECONDS - begin)) "$code" "$results/gpu/$name.log" \
      "$(grep -E -A12 'Failure$|ERROR SUMMARY|terminate|error:' "$results/gpu/$name.log" | head -60)"
  fi
}

step "this machine"
if [ -x "$bin/tandem" ]; then
  "$bin/tandem" doctor | tee "$results/doctor.txt"
  run_one doctor 60 "$bin/tandem" doctor --json
  grep -q '"devices":\[\]' "$results/gpu/doctor.log" && bench=0
  nvidia-smi >"$results/nvidia-smi.txt" 2>&1 || true
else
  echo "  no tandem program in $bin" | tee -a "$results/skipped-steps"
fi

step "tests"
programs=$(find "$tests" -maxdepth 1 -type f -perm -u+x \( -name 'gpu_*_test' -o -name 'multi_gpu_*_test' \) -printf '%f\n' | sort | grep -E "$filter")
for program in $programs; do
  GTEST_OUTPUT="xml:$results/gpu/$program.xml" run_one "$program" 600 "$tests/$program"
done

if [ "$bench" -eq 1 ] && [ -x "$bin/tandem-router" ] && [ -f "$root/tests/integration/harness.py" ]; then
  step "clusters of three processes on one card"
  TANDEM_TEST_BIN="$bin" run_one clusters 600 python3 "$root/tests/gpu/cluster_check.py"
else
  echo "clusters: left out (no card here, --no-bench, or no checkout)" >>"$results/skipped-steps"
fi

# Kernel tests alone: whole models take hours under the sanitizer and run the same kernels. Of random shapes a few,
# for what no kernel's test has: buffers that the engine has sized.
if [ "$sanitize" -eq 1 ]; then
  if command -v compute-sanitizer >/dev/null; then
    # cuBLASLt's own FP8 kernels (nvjet_sm90_qq…, CUDA 13.0) have hazards by racecheck, and one that a test of nothing
    # but their sums needs brings it down.
    # Racecheck does not count what other lanes did before a __syncwarp() towards the mbarrier arrival of one of them.
    # Where warpgroups of one block of linear_batch pass each other sums, that is how they do it: tests that reach this
    # are left out. Between blocks the stores themselves arrive, which it follows.
    # It also reports every stage of linear_small that is filled again, by CUDA 13.0 and 13.5, and with one arrival a
    # warp as with one a lane: all lanes of 8 warps read one (ldmatrix) and arrive; every lane that copies into it has
    # waited for that phase, by its own parity, before it issues a bulk copy, and no phase ends without all warps that
    # copy. Tests in which a block has more chunks than stages are left out.
    # 13.5 reports the stages of attention_decode too, where 13.0 does not: a warp that has read one calls __syncwarp()
    # before one of its lanes has it filled again, and results that lie in stages are merged between two __syncthreads().
    left=LinearFp8Test.SumsKeepTheBitsOfFloat32:*.AgreesWithDoublePrecisionAtAnyNumberOfRows:MoeTest.AgreesWithDoublePrecision
    for test in AgreesWithDoublePrecision ARowDoesNotDependOnItsCompany PlansAgree Float8WeightsAgreeWithDoublePrecision; do
      left="$left:LinearBatchTest.$test"
    done
    for test in AgreesWithDoublePrecision ARowDoesNotDependOnItsCompany PlansDoNotChangeResults \
        Float8WeightsAgreeWithDoublePrecision; do
      left="$left:LinearSmallTest.$test"
    done
    # Most of it is work of the host: several programs at a time. The longest come first.
    at_once=$(($(nproc) / 2 < 1 ? 1 : $(nproc) / 2 > 8 ? 8 : $(nproc) / 2))
    step "compute-sanitizer, $at_once programs at a time"
    # check TOOL PROGRAM FILTER, as soon as there is room
    check() {
      while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
      TANDEM_TEST_SMALL=1 TANDEM_SHAPES=12 run_one "$1-$2" 900 compute-sanitizer --tool "$1" --error-exitcode 86 \
        --kernel-name-exclude kernel_substring=nvjet "$tests/$2" --gtest_filter="$3" &
    }
    for tool in racecheck memcheck initcheck; do
      if [ "$tool" = memcheck ] && printf '%s\n' "$programs" | grep -qx gpu_shapes_test; then
        check memcheck gpu_shapes_test '*'
      fi
      for program in $(printf '%s\n' "$programs" | grep -vE 'golden|engine|owners|model|shapes|recorded'); do
        only='*'
        [ "$tool" != racecheck ] || only="-$left"
        check "$tool" "$program" "$only"
      done
    done
    wait
  else
    echo "compute-sanitizer: not on this machine" | tee -a "$results/skipped-steps"
  fi
fi

if [ "$bench" -eq 0 ]; then
  echo "benches: left out (no card here, or --no-bench)" | tee -a "$results/skipped-steps"
elif [ -x "$bin/tandem" ]; then
  for kind in kernels step transfer; do
    "$bin/tandem" bench --help | grep -qE "^ +$kind" || { echo "tandem bench $kind: not in this build" >>"$results/skipped-steps"; continue; }
    step "tandem bench $kind"
    transports=""
    [ "$kind" != transfer ] || transports="--transport cuda_ipc --transport ucx"
    # shellcheck disable=SC2086  # two words each
    run_one "bench-$kind" 600 "$bin/tandem" bench "$kind" $transports --json
    grep -E '^\{' "$results/gpu/bench-$kind.log" >"$results/bench-$kind.json"
  done
fi

printf '<?xml version="1.0"?>\n<testsuite>%s</testsuite>\n' "$(cat "$results/gpu/cases")" >"$results/gpu/ctest.xml"
step "summary (logs, reports and benches: $results)"
python3 "$root/tests/summary.py" "$results"
