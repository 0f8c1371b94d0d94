#!/bin/sh
# After a removal, or an upgrade.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
