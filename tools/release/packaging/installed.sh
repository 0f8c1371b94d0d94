#!/bin/sh
# After an installation or an upgrade. Weir is not enabled; if it runs already, the new program replaces it.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart weir.service
fi
