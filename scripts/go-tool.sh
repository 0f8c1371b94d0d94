#!/usr/bin/env bash
# Prints the path of a Go tool in exactly this version: go-tool.sh NAME PACKAGE VERSION. One that is missing, or another
# version, is built by go install.
set -euo pipefail

name=$1 package=$2 version=$3
gobin=$(go env GOBIN)
path=${gobin:-$(go env GOPATH)/bin}/$name

if ! go version -m "$path" 2>/dev/null | grep -q "^\smod\s.*\s$version\s"; then
  printf 'building %s %s\n' "$name" "$version" >&2
  go install "$package@$version" >&2
fi
printf '%s\n' "$path"
