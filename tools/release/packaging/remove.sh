#!/bin/sh
# Before a removal, but not before an upgrade: dpkg says "remove", rpm that 0 packages remain.
set -e
if [ "$1" = remove ] || [ "$1" = 0 ]; then
  [ ! -d /run/systemd/system ] || systemctl disable --now weir.service
fi
