#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# engine.sh RUNCWRAP PIDFILE: install Debian's Docker if it is missing, and start it unless an engine
# answers already. The process id of a started engine is written to PIDFILE. Needs root.
set -euo pipefail
runcwrap=${1:?usage: engine.sh RUNCWRAP PIDFILE}
pidfile=${2:?usage: engine.sh RUNCWRAP PIDFILE}
if docker info >/dev/null 2>&1; then
    exit 0
fi
if ! command -v dockerd >/dev/null || ! command -v debootstrap >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends docker.io iptables debootstrap ca-certificates >/dev/null
fi
arguments=()
bounding=$((16#$(awk '/^CapBnd/ {print $2}' /proc/self/status)))
if [ "$bounding" -ne $(((1 << ($(cat /proc/sys/kernel/cap_last_cap) + 1)) - 1)) ]; then
    # --privileged asks for every capability, and fails where root itself lacks one.
    arguments=(--add-runtime "runcwrap=$runcwrap" --default-runtime runcwrap)
fi
log=${pidfile%.pid}.log
rm -f /var/run/docker.pid
setsid nohup dockerd "${arguments[@]}" >"$log" 2>&1 </dev/null &
echo $! >"$pidfile"
for _ in $(seq 240); do
    docker info >/dev/null 2>&1 && exit 0
    sleep 0.5
done
tail -20 "$log" >&2
echo "engine.sh: dockerd does not answer after 120 s; its log is $log" >&2
exit 1
