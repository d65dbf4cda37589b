#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hook that runs before an executor's pod ends: sends SIGPWR, on which Spark migrates its blocks,
# and waits for the process to exit.
set -euo pipefail

seconds_max=${COMETMQ_DECOMMISSION_SECONDS:-60}
executor=$(pgrep -o java || true)
if [ -z "$executor" ]; then
    echo "decom: no Java process, nothing to migrate" >&2
    exit 0
fi

kill -s PWR "$executor"
if ! timeout "$seconds_max" tail --pid="$executor" --follow /dev/null; then
    echo "decom: process $executor did not exit within $seconds_max s" >&2
fi
