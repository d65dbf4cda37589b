#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program for roleHook: virtual-address.sh ROLE EPOCH BROKERNAME
# Keeps the address of a broker group on this host while its broker is the master.
# ADDRESS and INTERFACE come from the environment or from the file CONFIG, for example:
#   ADDRESS=10.0.0.100/24
#   INTERFACE=eth0
set -eu
config=${CONFIG:-/etc/cometmq/virtual-address.conf}
if [ -r "$config" ]; then
    . "$config"
fi
: "${ADDRESS:?virtual-address.sh: set ADDRESS}" "${INTERFACE:?virtual-address.sh: set INTERFACE}"
case ${1:?usage: virtual-address.sh ROLE EPOCH BROKERNAME} in
master)
    ip address replace "$ADDRESS" dev "$INTERFACE"
    # The neighbours still send to the host that had the address.
    if command -v arping >/dev/null; then
        arping -q -A -c 1 -I "$INTERFACE" "${ADDRESS%/*}"
    fi
    ;;
*)
    if [ -n "$(ip -oneline address show dev "$INTERFACE" to "${ADDRESS%/*}")" ]; then
        ip address delete "$ADDRESS" dev "$INTERFACE"
    fi
    ;;
esac
