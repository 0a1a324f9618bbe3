#!/usr/bin/env bash
# Runs everything that wants several GPUs, on one host with two or more and no network. What cannot run is named and counted. The last
# line is `N passed, N failed, N skipped`; with fewer than two cards nothing runs.
#
# usage: tests/multi_gpu/run.sh [--build DIR] [--results DIR] [--no-bench] [--quick] [--only STEP,...] [--within SECONDS]
#   --build     build tree to take the programs from (default: build/release of this checkout)
#   --results   where logs, tables and JSON go (default: a new folder in /tmp)
#   --no-bench  leaves out what only measures: bench, exposed, topologies
#   --quick     messages up to 64 MiB, one KV format, fewer layers, requests and rates
#   --only      some of the steps: links, transport, clusters, bench, exposed, topologies
#   --within    starts no step after this time and cuts each to what is left; a step left out is a failure (default: 3600)
#   --cpu       instead: what needs no card, on CPU nodes over ucx (clusters, exposed, topologies), with the models at hand
#
# SmolLM2 is TANDEM_SMOLLM2's file, or what scripts/fetch-smollm2.sh has fetched. The other models come with the checkout, or are made up.
# NVLink multicast stays as the environment has it (NCCL_NVLS_ENABLE): programs that use it can put a host's GPUs out of service.
# Elsewhere than on the machine that built, as tests/gpu/run.sh says: install the component gpu-tests and start it there.
set -uo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build="$root/build/release" results="" bench=1 quick=0 cpu=0 only=links,transport,clusters,bench,exposed,topologies within=3600
need() { [ $# -ge 2 ] || { echo "run.sh: $1 needs a value (see --help)" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --build) need "$@"; build=$2; shift ;;
    --results) need "$@"; results=$2; shift ;;
    --no-bench) bench=0 ;;
    --quick) quick=1 ;;
    --cpu) cpu=1 ;;
    --only) need "$@"; only=$2; shift ;;
    --within) need "$@"; within=$2; shift ;;
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
wanted() { case ",$only," in *",$1,"*) return 0 ;; esac; return 1; }
passed=0 failed=0 skipped=0 started=$SECONDS
skip() { skipped=$((skipped + 1)); echo "  skipped $1: $2"; }
cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
if [ "$cpu" -eq 0 ] && [ "$cards" -lt 2 ]; then
  for step in links transport clusters bench exposed topologies; do
    if wanted "$step"; then skip "$step" "this machine has $cards card(s), two are needed"; fi
  done
  echo "0 passed, 0 failed, $skipped skipped"
  exit 0
fi
[ "$cpu" -eq 1 ] || [ -x "$tests/gpu_transport_test" ] || { echo "run.sh: no gpu_transport_test in $tests: build target tandem_gpu_tests first" >&2; exit 2; }
if [ -z "$results" ]; then results=$(mktemp -d /tmp/tandem-multi-gpu-XXXXXX); fi
mkdir -p "$results" || exit 2

for program in tandem tandem-router tandem-prefill tandem-decode; do
  [ -x "$bin/$program" ] || { echo "run.sh: no $program in $bin: build target all first" >&2; exit 2; }
done

# Where NCCL and cuBLASLt lie on machines that have them for PyTorch, or from scripts/install-cuda.sh.
nvidia=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for folder in ${nvidia:+"$nvidia/cu13/lib" "$nvidia/nccl/lib"} \
  "${TANDEM_CUDA_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/cuda-13.0}"/nvidia/{cu13,nccl}/lib; do
  if [ -d "$folder" ]; then LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"; fi
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

# run_one NAME SECONDS COMMAND...: output to a log; the end of it is shown when it fails.
run_one() {
  local name=$1 limit=$2 code=0 begin=$SECONDS left=$((within - (SECONDS - started)))
  shift 2
  if [ "$left" -lt 5 ]; then
    failed=$((failed + 1))
    echo "  FAILED  $name: left out, the $within seconds are up"
    return
  fi
  timeout "$((limit < left ? limit : left))" "$@" >"$results/$name.log" 2>&1 </dev/null || code=$?
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1))
    echo "  ok      $name, $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    echo "  FAILED  $name, exit code $code after $((SECONDS - begin)) s, log $results/$name.log"
    grep -E -A8 'Failure$|FAILED|MISSING|[Ee]rror' "$results/$name.log" | head -40
  fi
}

here="$root/tests/multi_gpu"
devices=cuda:0,cuda:1 small=() lengths=512,2048,8192 model=qwen2-7b checked=chat-6m formats=() largest=1024 requests=300
# Rates that two H200 just serve within the SLO, and a third more than that.
scale=(--time-scale 0.09 --time-scale 0.06)
if [ "$quick" -eq 1 ]; then
  formats=(--format bf16) largest=64 requests=100 model=qwen2-7b:8
  scale=(--time-scale 0.03 --slo-ttft-ms 150 --slo-itl-ms 10)
fi
fetched="$root/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
if [ -z "${TANDEM_SMOLLM2:-}" ] && [ -f "$fetched" ]; then export TANDEM_SMOLLM2=$fetched; fi
if [ -n "${TANDEM_SMOLLM2:-}" ]; then
  checked=smollm2
elif wanted clusters; then
  skip "SmolLM2 in clusters" "no model; chat-6m takes its place. Set TANDEM_SMOLLM2 to its file, or run scripts/fetch-smollm2.sh"
fi
export TANDEM_TEST_BIN="$bin"
if [ "$cpu" -eq 1 ]; then
  devices=cpu,cpu only=clusters,exposed,topologies model=chat-6m requests=40 lengths=128,512,2048
  small=(--kv-memory 64MiB)
fi

if wanted links; then
  echo "== links"
  nvidia-smi topo -m 2>/dev/null | head -$((cards + 1))
  run_one doctor 60 "$bin/tandem" doctor
  grep -iE 'nvlink|peer|link' "$results/doctor.log" | head -20
  run_one links 60 python3 "$here/links.py" --devices "$devices"
  cat "$results/links.log"
fi
if wanted transport; then
  echo "== two processes, GPU 0 and GPU 1: both directions, either side killed, a frozen receiver"
  TANDEM_PEER_GPU=1 run_one transport 120 "$tests/gpu_transport_test" --gtest_filter='Kinds*'
fi
if wanted clusters; then
  echo "== clusters: prefill on one device, decode on the other, over each transport: same tokens, roles killed and frozen"
  if [ "$cpu" -eq 0 ]; then # made-up weights first: every format with 4 layers, bf16 with all 28
    run_one clusters-qwen2-7b-whole 300 python3 "$here/cluster_check.py" --devices "$devices" --model qwen2-7b --only tokens --jobs 2 \
      --kv-memory 1GiB --memory-share 0.2 --format bf16
    run_one clusters-qwen2-7b 400 python3 "$here/cluster_check.py" --devices "$devices" --model qwen2-7b:4 --only tokens --jobs 4 \
      --kv-memory 1GiB --memory-share 0.15 "${formats[@]}"
  fi
  run_one clusters-tokens 300 python3 "$here/cluster_check.py" --devices "$devices" --model "$checked" --only tokens \
    --jobs "$((cpu == 1 ? 1 : 4))" --memory-share 0.1 "${formats[@]}"
  run_one clusters-faults 600 python3 "$here/cluster_check.py" --devices "$devices" --model "$checked" --only faults
  cat "$results"/clusters-*.log | grep -E '^(ok|FAILED|  )' | cut -c1-300 | head -120
fi
if [ "$bench" -eq 1 ]; then
  if wanted bench; then
    echo "== KV pushes by message size, one way and both ways, against plain peer copies, plain NCCL sends and ucx_perftest"
    run_one bench 400 "$bin/tandem" bench transfer --from 0 --to 1 --largest "$largest" --transport cuda_ipc --transport nccl --transport ucx
    cat "$results/bench.log"
  fi
  if wanted exposed; then
    echo "== what is left of the push when a prompt is computed"
    run_one exposed 300 python3 "$here/exposed.py" --devices "$devices" --model "$model" --tokens "$lengths" --json "$results/exposed.json" "${small[@]}"
    cat "$results/exposed.log"
  fi
  if wanted topologies; then
    echo "== topologies against colocated nodes, on the Azure conversation trace"
    if [ "$cpu" -eq 1 ]; then scale=(--time-scale 0.2 --length-scale 0.1 --max-prompt 1000 --max-output 64 --slo-itl-ms 100 --slo-ttft-ms 1000); fi
    run_one topologies 1200 python3 "$here/topologies.py" --devices "$devices" --model "$model" --requests "$requests" \
      --json "$results/topologies.json" "${scale[@]}" "${small[@]}"
    cat "$results/topologies.log" | grep -v '^{' | cut -c1-220
  fi
fi
if [ "$bench" -eq 0 ]; then
  for step in bench exposed topologies; do if wanted "$step"; then skip "$step" "--no-bench"; fi; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
