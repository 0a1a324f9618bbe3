#!/usr/bin/env bash
# Installs what building Tandem needs, from the distribution's own packages (Debian 12, Ubuntu 24.04).
# Does nothing, in well under a second, when everything is there. Safe to run again.
#
# usage: scripts/install-packages.sh [--tests] [--check]
#   --tests   also what only test.sh needs (formatter, Node.js, a browser)
#   --check   install nothing; exit 1 and list what is missing
set -euo pipefail
TANDEM_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. "$TANDEM_ROOT/scripts/env.sh"

tests=0 check=0
for argument in "$@"; do
  case "$argument" in
    --tests) tests=1 ;;
    --check) check=1 ;;
    -h | --help) sed -nE '2,/^([^#]|$)/s/^# ?//p' "$0"; exit 0 ;;
    *) echo "install-packages.sh: unknown option $argument (see --help)" >&2; exit 2 ;;
  esac
done

say() { printf '%s\n' "$*" >&2; }

rust_minimum=85 # tokenizers' dependencies use edition 2024
rust_is_new_enough() {
  local minor
  minor=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p') || return 1
  [ -n "$minor" ] && [ "$minor" -ge "$rust_minimum" ] && rustc --version >/dev/null 2>&1
}

requirements='g++ 12 or clang 15, CMake 3.25, ninja, pkg-config, Boost 1.81 with Boost.JSON, yaml-cpp, prometheus-cpp, protobuf
with protoc, UCX, tl-expected, fmt, CLI11, xxhash, OpenSSL, GoogleTest, Google Benchmark, cargo and rustc 1.85'

if ! command -v apt-get >/dev/null 2>&1; then
  say "This system has no apt-get, so nothing is installed by this script. The build needs:"
  say "$requirements"
  [ "$check" -eq 0 ] || exit 1
  exit 0
fi

# The version that apt would install; nothing, where there is none. (apt-cache show knows names that others only refer to.)
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([^(].*\)/\1/p'; }

# Debian 12 ships Boost 1.74 as libboost-dev; the versioned packages are the newer ones.
boost=""
for version in 1.81 1.83 1.84 1.86 1.88 1.90; do
  if dpkg-query -W -f='${Status}' "libboost-json${version}-dev" 2>/dev/null | grep -q "ok installed"; then
    boost=$version
    break
  fi
done
find_boost() {
  local version
  for version in 1.81 1.83 1.84 1.86 1.88 1.90; do
    if [ -n "$(candidate "libboost-json${version}-dev")" ]; then boost=$version; return; fi
  done
  say "apt offers no libboost-json 1.81 or newer. Tandem is built on Debian 12, Ubuntu 24.04 and newer."
  exit 1
}

wanted() {
  local b=${boost:-1.81}
  printf '%s\n' g++ make cmake ninja-build pkg-config ccache git ca-certificates unzip \
    "libboost${b}-dev" "libboost-json${b}-dev" libyaml-cpp-dev prometheus-cpp-dev protobuf-compiler libprotobuf-dev \
    libucx-dev libexpected-dev libfmt-dev libcli11-dev libxxhash-dev libssl-dev zlib1g-dev \
    libgtest-dev libgmock-dev libbenchmark-dev python3 python3-pip python3-venv
  if [ "$tests" -eq 1 ]; then
    printf '%s\n' curl openssl procps
    # Other versions format otherwise; without this one the lint skips and says so.
    if ! command -v clang-format-14 >/dev/null 2>&1 && [ -n "$(candidate clang-format-14)" ]; then echo clang-format-14; fi
    # A Node.js that came another way (a newer one from nvm, say) is as good.
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || printf '%s\n' nodejs npm
    # On Ubuntu the package is only a door to a snap, which containers cannot open; tests then skip and say so.
    if ! command -v chromium >/dev/null 2>&1 && ! grep -q '^ID=ubuntu' /etc/os-release; then echo chromium; fi
  fi
}

missing() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p' | sort -u)
  comm -23 <(wanted | sort -u) <(printf '%s\n' "$installed")
}

sudo=()
need_root() { # need_root PACKAGE...
  [ "$(id -u)" -ne 0 ] || return 0
  sudo=(sudo)
  command -v sudo >/dev/null 2>&1 && return 0
  say "Installing packages needs root, and there is no sudo. As root, run:"
  say "  apt-get update && apt-get install -y --no-install-recommends $*"
  exit 1
}

# What apt and dpkg say goes to a log; its end is shown when they fail.
apt_log="$TANDEM_ROOT/.cache/apt.log"
with_apt() {
  mkdir -p "$TANDEM_ROOT/.cache"
  ${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive "$@" -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 >>"$apt_log" 2>&1 </dev/null ||
    { tail -15 "$apt_log" >&2; return 1; }
}

apt_install() { with_apt apt-get install -y -q --no-install-recommends "$@"; }

updated=0
apt_update() {
  [ "$updated" -eq 0 ] || return 0
  with_apt apt-get update -q ||
    say "apt-get update failed; going on with the package lists at hand"
  updated=1
}

absent=$(missing)
rust=1
rust_is_new_enough || rust=0
if [ -z "$absent" ] && [ "$rust" -eq 1 ]; then
  say "packages: all there"
  exit 0
fi
if [ "$check" -eq 1 ]; then
  [ -z "$absent" ] || say "missing packages: $(echo $absent)"
  [ "$rust" -eq 1 ] || say "missing: cargo and rustc, 1.$rust_minimum or newer"
  exit 1
fi

if [ -n "$absent" ]; then
  # shellcheck disable=SC2086
  need_root $absent
  say "packages: installing $(echo "$absent" | wc -l) and what they need, which takes minutes (log: .cache/apt.log)"
  apt_update
  [ -n "$boost" ] || find_boost
  absent=$(missing)
  # shellcheck disable=SC2086
  apt_install $absent || {
    say "apt-get could not install these packages. The message above says which one and why; the build needs:"
    say "$requirements"
    exit 1
  }
fi

# Without a rustup toolchain: the distribution's own cargo where it is new enough (Debian 13); cargo-web is Debian 12's current Rust
# (it replaces the old `cargo` package); Ubuntu has versioned packages whose programs carry the version in their names.
if [ "$rust" -eq 0 ]; then
  need_root cargo rustc
  apt_update
  plain=$(candidate cargo | sed -n 's/^1\.\([0-9]*\)\..*/\1/p')
  if [ "${plain:-0}" -ge "$rust_minimum" ]; then
    say "packages: installing cargo (Rust)"
    apt_install cargo rustc
  elif [ -n "$(candidate cargo-web)" ]; then
    say "packages: installing cargo-web (Rust)"
    apt_install cargo-web
  else
    package=$(apt-cache search --names-only '^cargo-1\.[0-9]+$' | sed -n 's/^cargo-1\.\([0-9]*\) .*/\1/p' | sort -n | tail -1)
    if [ -z "$package" ] || [ "$package" -lt "$rust_minimum" ]; then
      say "No Rust of 1.$rust_minimum or newer is installed, and apt offers none. Install it with rustup (https://rustup.rs)."
      exit 1
    fi
    say "packages: installing cargo-1.$package (Rust)"
    apt_install "cargo-1.$package" "rustc-1.$package"
    mkdir -p "$TANDEM_ROOT/.cache/rust/bin"
    ln -sf "$(command -v "cargo-1.$package")" "$TANDEM_ROOT/.cache/rust/bin/cargo"
    ln -sf "$(command -v "rustc-1.$package")" "$TANDEM_ROOT/.cache/rust/bin/rustc"
  fi
  . "$TANDEM_ROOT/scripts/env.sh"
  hash -r
  rust_is_new_enough || { say "cargo is still older than 1.$rust_minimum: $(command -v cargo) comes first in PATH"; exit 1; }
fi
say "packages: all there"
