#!/usr/bin/env bash
# From a fresh machine to a streamed answer: installs what is missing, builds, fetches a small real model, starts a router,
# a prefill node and a decode node as three processes, asks a question and shows what it took.
#
# usage: ./quickstart.sh [--keep] [--model DIR|FILE.gguf] [--ask QUESTION]
#   --keep    leave the cluster running; `build/release/bin/tandem down` stops it
#   --model   serve this Hugging Face folder or GGUF file instead of SmolLM2-135M-Instruct
#   --ask     ask something else
set -euo pipefail
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$TANDEM_ROOT/scripts/env.sh"

keep=0 model="" question="What is the capital of France, and what is it known for?"
need() { [ $# -ge 2 ] || { echo "quickstart.sh: $1 needs a value (see --help)" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=1 ;;
    --model) need "$@"; model=$2; shift ;;
    --ask) need "$@"; question=$2; shift ;;
    -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
if [ -n "$model" ]; then
  [ -e "$model" ] || { echo "quickstart.sh: --model $model: no such file or folder" >&2; exit 2; }
  model=$(realpath "$model")
fi
down="build/release/bin/tandem down"
[ "$PWD" = "$TANDEM_ROOT" ] || down="(cd $(printf '%q' "$TANDEM_ROOT") && $down)"
cd "$TANDEM_ROOT"

steps=6
step() { printf '[%d/%d] %s\n' "$1" "$steps" "$2" >&2; }
die() { printf 'quickstart.sh: %s\n' "$*" >&2; exit 1; }

bin=build/release/bin
started=0 starting=""
clean_up() {
  local code=$?
  trap - EXIT INT TERM HUP
  if [ "$started" -eq 1 ]; then
    "$bin/tandem" down || true
    # Stopped so early that there was nothing to see yet: once more when it has come up.
    if [ -n "$starting" ] && kill -0 "$starting" 2>/dev/null; then
      wait "$starting" || true
      "$bin/tandem" down 2>/dev/null || true
    fi
  fi
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

step 1 "packages"
scripts/install-packages.sh
. scripts/env.sh
# The CUDA toolkit is fetched only where there is something to run on it.
has_toolkit() { # of 13.0 or newer, where CMake looks
  local nvcc
  for nvcc in "${CUDACXX:-}" "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if [ -x "$nvcc" ] && "$nvcc" --version | grep -qE 'release (1[3-9]|[2-9][0-9])\.'; then return 0; fi
  done
  return 1
}
if { [ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null 2>&1; } && ! has_toolkit; then
  if ! scripts/install-cuda.sh >/dev/null; then
    echo "      no CUDA toolkit (see above): building for CPU only" >&2
  elif [ -f build/release/build.ninja ] && ! grep -q tandem_kernels_cuda build/release/build.ninja; then
    rm build/release/build.ninja # configured before the toolkit was there
  fi
fi

# Turns ninja's "[12/345] ..." lines into a percentage; everything goes to the log. On a terminal one line that changes, else a
# line for every tenth, and one when the Rust crates begin, during which ninja itself is silent.
show_progress() {
  local line last=-1 percent rust="" began=$SECONDS
  show() {
    printf '\r\033[K[3/%d] building … %d %% after %d:%02d%s' "$steps" "$((last < 0 ? 0 : last))" $(((SECONDS - began) / 60)) \
      $(((SECONDS - began) % 60)) "$1" >&2
  }
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ "$line" =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      percent=$((BASH_REMATCH[1] * 100 / BASH_REMATCH[2]))
      [ "$percent" -ne "$last" ] || continue
      if [ ! -t 2 ] && [ $((percent / 10)) -ne $((last / 10)) ]; then printf '[3/%d] building … %d %%\n' "$steps" "$percent" >&2; fi
      last=$percent
      [ ! -t 2 ] || show ""
    elif [[ "$line" =~ ^\ +Compiling\ ([^ ]+) ]]; then
      if [ -t 2 ]; then show " (Rust: ${BASH_REMATCH[1]})"
      elif [ -z "$rust" ]; then printf '[3/%d] building … tokenizers and templates (Rust)\n' "$steps" >&2; fi
      rust=seen
    fi
  done
  [ "$last" -lt 0 ] || [ ! -t 2 ] || printf '\n' >&2
}

mkdir -p build
log=build/quickstart-build.log
: >"$log"
if [ ! -f build/release/build.ninja ]; then
  step 2 "configuring"
  cmake --preset release >>"$log" 2>&1 || { tail -20 "$log" >&2; die "cmake failed; the whole log is $log"; }
else
  step 2 "configured already"
fi
step 3 "building (minutes the first time, $(nproc) jobs; log: $log)"
cmake --build build/release -j "$(nproc)" --target tandem tandem-router tandem-prefill tandem-decode 2>&1 | show_progress ||
  { tail -40 "$log" >&2; die "the build failed; the whole log is $log"; }

if [ -n "$model" ]; then
  step 4 "model: $model"
  export TANDEM_MODEL_PATH="$model"
elif fetched=$(scripts/fetch-smollm2.sh); then
  step 4 "model: SmolLM2-135M-Instruct (Apache-2.0), $fetched"
  export TANDEM_MODEL_PATH="$fetched" TANDEM_MODEL_ID=SmolLM2-135M-Instruct
else
  step 4 "model: SmolLM2 could not be fetched (see above); serving the small models/chat-6m of this repository instead"
  export TANDEM_MODEL_PATH="$TANDEM_ROOT/models/chat-6m"
fi

# What an earlier run left is stopped; somebody's own cluster is not.
told=$("$bin/tandem" down --config deploy/quickstart.yaml 2>&1) || {
  printf '%s\n' "$told" >&2
  die "that cluster is left alone: stop it with \`$down\`, or let it run from another folder (\`tandem up --run-dir DIR\`)"
}
case "$told" in stopping*) echo "      stopped the cluster that an earlier run left" >&2 ;; esac
# A port that somebody listens on already is left to them.
busy() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
pick_port() { # pick_port VARIABLE DEFAULT
  if [ -z "${!1:-}" ] && busy "$2"; then
    export "$1=0"
    echo "      port $2 is in use; taking a free one" >&2
  fi
}
pick_port TANDEM_ROUTER_HTTP_PORT 8000
pick_port TANDEM_ROUTER_CONTROL_PORT 7070

step 5 "starting three processes from deploy/quickstart.yaml"
started=1
# In the background, so that Ctrl-C need not wait until everything is ready.
"$bin/tandem" up --detach deploy/quickstart.yaml &
starting=$!
wait "$starting" || { started=0; die "the cluster did not start (see above)"; }

step 6 "asking: $question"
printf '\n'
"$bin/tandem" chat --stats --temperature 0 --max-tokens 128 --ask "$question"

url=$("$bin/tandem" status --url-only)
printf '\n  API                  %s/v1\n  status page          %s/\n' "$url" "$url"
if [ "$keep" -eq 1 ]; then
  started=0
  printf '\nIt keeps running. %s\n' "Stop it with: $down"
else
  printf '\nStopping it again; ./quickstart.sh --keep leaves it running.\n'
fi
