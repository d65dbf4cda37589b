#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh: print the folder of prometheus-adapter, and build it unless it is in the cache.
# The first build takes three minutes on two cores. The cache is a folder of E2E_CACHE, under a hash of
# these files, as for the programs of the cluster (../cluster/README.md). The adapter has a Go module of
# its own, because it needs older Kubernetes libraries than the cluster.
set -euo pipefail
cd "$(dirname "$0")"
cache=${E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cometmq-e2e}
folder=$cache/adapter-$(cat go.mod go.sum build.sh | sha256sum | cut -c1-12)
if [ ! -x "$folder/prometheus-adapter" ]; then
    echo "[$(date +%T)] building prometheus-adapter; the first time takes three minutes" >&2
    rm -rf "$folder.part"
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder.part/prometheus-adapter" \
        sigs.k8s.io/prometheus-adapter/cmd/adapter
    mv "$folder.part" "$folder"
fi
echo "$folder"
