#!/usr/bin/env bash
# Installs a private CUDA 13.0 toolkit (nvcc, cuBLASLt, NCCL, headers; 730 MB to fetch, 1.2 GB on disk) for building Tandem
# with CUDA, and prints its folder. Needs neither root nor a GPU; touches nothing outside the folder, which all clones of a
# user share. A toolkit that is there already is used at once; interrupted or concurrent runs do no harm.
#
# usage: scripts/install-cuda.sh [--ucx] [--tools] [--check]
#   --ucx     also a UCX 1.22 that can move GPU memory (43 MB)
#   --tools   also cuobjdump and nvdisasm, to read the machine code of kernels
#   --check   install nothing; print the folder if it is complete, else exit 1 and say what is missing
#
# The folder is $TANDEM_CUDA_ROOT, else ${XDG_CACHE_HOME:-~/.cache}/tandem/cuda-13.0; what is in it is pinned by SHA-256 in
# scripts/cuda-requirements.txt.
set -euo pipefail
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

parts=(toolkit) check=0
for argument in "$@"; do
  case "$argument" in
    --ucx) parts+=(ucx) ;;
    --tools) parts+=(tools) ;;
    --check) check=1 ;;
    -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;;
    *) echo "install-cuda.sh: unknown option $argument (see --help)" >&2; exit 2 ;;
  esac
done
say() { printf 'cuda: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

root="${TANDEM_CUDA_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/cuda-13.0}"
lock_file="$TANDEM_ROOT/scripts/cuda-requirements.txt"
requirements_of() { sed -n "/^# part $1\$/,/^# part/{/^#/!p}" "$lock_file"; }
fingerprint_of() { requirements_of "$1" | sha256sum | cut -d' ' -f1; }
is_there() { [ "$(cat "$root/.$1.stamp" 2>/dev/null)" = "$(fingerprint_of "$1")" ]; }
missing_parts() {
  local part
  for part in "${parts[@]}"; do is_there "$part" || printf '%s\n' "$part"; done
}

if [ -z "$(missing_parts)" ]; then printf '%s\n' "$root"; exit 0; fi
if [ "$check" -eq 1 ]; then
  say "$root lacks: $(missing_parts | tr '\n' ' ')"
  exit 1
fi

[ "$(uname -m)" = x86_64 ] || die "the pinned wheels are for x86-64, this is $(uname -m); install NVIDIA's toolkit instead"
command -v python3 >/dev/null || die "python3 is missing (scripts/install-packages.sh installs it)"
mkdir -p "$root" || die "cannot make $root; set TANDEM_CUDA_ROOT to a folder that can be written"
exec 9>"$root/.lock"
if ! flock -n 9; then
  say "another run is installing into $root; waiting for it"
  flock 9
fi
wanted=$(missing_parts)
if [ -z "$wanted" ]; then printf '%s\n' "$root"; exit 0; fi

# Wheels and their contents lie on the disk at the same time.
free_mb=$(df -Pm "$root" | awk 'NR == 2 {print $4}')
[ "$free_mb" -ge 2600 ] || die "$root has $free_mb MB free and 2600 are needed; make room or set TANDEM_CUDA_ROOT"

stage="$root/.stage"
mkdir -p "$stage/wheels"
pip=(python3 -m pip)
if ! python3 -m pip --version >/dev/null 2>&1; then
  python3 -m venv "$stage/venv" >&2 || die "neither pip nor venv works with $(command -v python3)"
  pip=("$stage/venv/bin/python" -m pip)
fi
bar=()
[ -t 2 ] || bar=(-q) # a progress bar only where somebody can see it

# The wheels lack the names that compilers and CMake look for.
finish_toolkit() {
  local cuda="$1/nvidia/cu13"
  ln -sfn lib "$cuda/lib64"
  ln -sf libcublasLt.so.13 "$cuda/lib/libcublasLt.so"
  ln -sf libcublas.so.13 "$cuda/lib/libcublas.so"
  ln -sf libcudart.so.13 "$cuda/lib/libcudart.so"
  ln -sf libnccl.so.2 "$1/nvidia/nccl/lib/libnccl.so"
}

# One wheel after the other, each kept until its part is complete, so that an interrupted run goes on where it stopped.
install_part() {
  local part=$1 line name count=0 total
  total=$(requirements_of "$part" | wc -l)
  while IFS= read -r line; do
    count=$((count + 1))
    name=${line%% *}
    if [ ! -f "$stage/wheels/$name.done" ]; then
      say "[$count/$total] fetching ${name/==/ }"
      printf '%s\n' "$line" >"$stage/requirement.txt"
      "${pip[@]}" download --no-deps --only-binary :all: --require-hashes --disable-pip-version-check --retries 3 \
        --timeout 30 ${bar[@]+"${bar[@]}"} -d "$stage/wheels" -r "$stage/requirement.txt" >&2 </dev/null ||
        die "could not fetch ${name/==/ } (see above). Run again to go on; what has been fetched is kept"
      : >"$stage/wheels/$name.done"
    fi
  done < <(requirements_of "$part")
  say "unpacking"
  rm -rf "$stage/tree"
  mkdir "$stage/tree"
  requirements_of "$part" | sed 's/ --hash.*//' >"$stage/requirement.txt"
  "${pip[@]}" install -q --root-user-action ignore --no-deps --no-index --no-compile --disable-pip-version-check --find-links "$stage/wheels" \
    --target "$stage/tree" -r "$stage/requirement.txt" >&2 </dev/null || die "unpacking failed (see above)"
  if [ "$part" = toolkit ]; then finish_toolkit "$stage/tree"; fi
  cp -al "$stage/tree/." "$root/"
  fingerprint_of "$part" >"$root/.$part.stamp"
}

started=$SECONDS
# A toolkit of other pins is replaced as a whole: files of two versions must not mix.
if ! is_there toolkit; then
  find "$root" -mindepth 1 -maxdepth 1 ! -name .lock ! -name .stage -exec rm -rf {} +
  wanted=$(missing_parts)
fi
for part in $wanted; do
  say "installing part '$part' into $root"
  install_part "$part"
done
rm -rf "$stage"
"$root/nvidia/cu13/bin/nvcc" --version >/dev/null || die "$root/nvidia/cu13/bin/nvcc does not run here"
say "ready in $((SECONDS - started)) s: $root"
printf '%s\n' "$root"
