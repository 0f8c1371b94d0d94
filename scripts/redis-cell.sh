#!/usr/bin/env bash
# Builds the redis-cell module in .tools/redis-cell for tests, and prints its path. It needs cargo and a C compiler. Cargo
# downloads the crate from crates.io once and caches it.
set -euo pipefail
cd "$(dirname "$0")/.."

# A dependency that is a dylib is linked with rustc's shared standard library, which redis-server must find.
RUSTFLAGS="-C link-arg=-Wl,-rpath,$(rustc --print target-libdir)" \
  cargo build --release --locked --quiet --manifest-path internal/test/redistest/rediscell/Cargo.toml \
  --target-dir .tools/redis-cell >&2
printf '%s\n' "$PWD/.tools/redis-cell/release/libredis_cell.so"
