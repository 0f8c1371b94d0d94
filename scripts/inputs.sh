#!/usr/bin/env bash
# Prints a word that stays the same while what tests read is the same: Go reuses a test's result, but sees only what the
# test's own process reads below its module's root (docs/adr/0072). inputs.sh tools is about the programs of this machine
# and of .tools, inputs.sh tree also about all files of the repository by content, but those that git ignores.
# A word that never comes again lets Go reuse nothing: in the long form, and where git or Debian's packages are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

never() {
  date +never-%s-%N
  exit
}

[ "${WEIR_LONG-}" != 1 ] || never
packages=$(dpkg-query -W 2>/dev/null) && git rev-parse --is-inside-work-tree >/dev/null 2>&1 || never

tools() {
  go env -changed
  printf '%s\n' "$packages"
  find -L .tools -path .tools/images -prune -o -type f -perm /111 -printf '%p %s %T@\n' -o -name '*.dist-info' -print |
    sort
}

# Without files that are deleted: for git they may be there still.
tree() {
  tools
  git ls-files -z --cached --others --exclude-standard | sort -zu |
    comm -z -23 - <(git ls-files -z --deleted | sort -z) |
    tar -c --null --no-recursion --files-from - --mtime @0 --owner 0 --group 0
}

case "${1-}" in
tools | tree) word=$("$1" | sha256sum | cut -c -32) && printf '%s-%s\n' "$1" "$word" ;;
*) printf 'usage: inputs.sh tools|tree\n' >&2 && exit 2 ;;
esac
