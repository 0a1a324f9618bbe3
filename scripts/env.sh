# Sourced by the other scripts; sets nothing that outlives them. Wants TANDEM_ROOT.

# A Rust toolchain that apt installed under a versioned name, then one from rustup.
for tandem_dir in "$TANDEM_ROOT/.cache/rust/bin" "${CARGO_HOME:-$HOME/.cargo}/bin"; do
  if [ -x "$tandem_dir/cargo" ]; then
    case ":$PATH:" in *":$tandem_dir:"*) ;; *) PATH="$tandem_dir:$PATH" ;; esac
  fi
done
unset tandem_dir
export PATH

# Objects survive a fresh clone: compiler output is kept per user, not per checkout.
export CCACHE_DIR="${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/ccache}"
export CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-5G}"
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$TANDEM_ROOT}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"
