#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install CometMQ and its units on a host with systemd, as root: install.sh [FOLDER_OF_THE_RELEASE]
# Files in /etc/cometmq are kept. Nothing is started.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
release=$(cd "${1:-$here/..}" && pwd)
version=$(cat "$here/VERSION")
if [ ! -f "$release/requirements.txt" ]; then
    echo "install.sh: $release has no release of CometMQ: install.sh FOLDER_OF_THE_RELEASE" >&2
    exit 2
fi
root=${DESTDIR:-}
python3 -m venv "$root/opt/cometmq"
"$root/opt/cometmq/bin/python" -m pip install --quiet --require-hashes --requirement "$release/requirements.txt"
"$root/opt/cometmq/bin/python" -m pip install --quiet --no-index --find-links "$release" "cometmq==$version"
mkdir -p "$root/etc/cometmq" "$root/etc/systemd/system" "$root/usr/lib/sysusers.d" "$root/opt/cometmq/share"
cp "$here"/*.service "$root/etc/systemd/system/"
cp "$here/README.md" "$root/opt/cometmq/share/"
cp "$here/cometmq.sysusers" "$root/usr/lib/sysusers.d/cometmq.conf"
for file in "$here"/*.conf; do
    [ -e "$root/etc/cometmq/$(basename "$file")" ] || cp "$file" "$root/etc/cometmq/"
done
if [ -z "$root" ]; then
    systemd-sysusers cometmq.conf
    chown -R cometmq:cometmq /etc/cometmq
    chmod 0750 /etc/cometmq
    systemctl daemon-reload
fi
echo "CometMQ $version is installed; start it with: systemctl enable --now cometmq-namesrv cometmq-broker"
