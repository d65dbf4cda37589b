#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the path of helm: that of PATH, or one built by Go into .cache/tools (some minutes, once).
set -eu
version=v3.19.5
if command -v helm >/dev/null; then
    command -v helm
    exit 0
fi
tools=$(cd "$(dirname "$0")/../.." && pwd)/.cache/tools/helm-$version
if [ ! -x "$tools/helm" ]; then
    if ! command -v go >/dev/null; then
        echo "install-helm.sh: install helm 3.18 or newer, or Go 1.24 or newer to build it" >&2
        exit 2
    fi
    CGO_ENABLED=0 GOBIN="$tools" go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$version" >&2
fi
echo "$tools/helm"
