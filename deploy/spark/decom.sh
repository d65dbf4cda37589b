#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hook before an executor's pod ends: Spark moves its blocks away (SIGPWR), and this waits for it.
set -euo pipefail

seconds_max=${COMETMQ_DECOMMISSION_SECONDS:-60}
executor=$(pgrep -o java || true)
if [ -z "$executor" ]; then
    echo "decom: no Java process here, nothing to move" >&2
    exit 0
fi

kill -s PWR "$executor"
if ! timeout "$seconds_max" tail --pid="$executor" --follow /dev/null; then
    echo "decom: process $executor did not end within $seconds_max s" >&2
fi
