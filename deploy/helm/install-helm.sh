#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the path of helm: that of PATH, or one built by Go into .cache/tools (some minutes, once).
set -eu
version=v3.19.5
# The version of Kubernetes that helm assumes without a cluster: that of its client-go. A plain
# `go install` leaves it at 1.20, which our charts refuse.
kubernetes=1.34
if command -v helm >/dev/null; then
    command -v helm
    exit 0
fi
tools=$(cd "$(dirname "$0")/../.." && pwd)/.cache/tools/helm-$version-kubernetes-$kubernetes
if [ ! -x "$tools/helm" ]; then
    if ! command -v go >/dev/null; then
        echo "install-helm.sh: install helm 3.18 or newer, or Go 1.24 or newer to build it" >&2
        exit 2
    fi
    flags="-s -w"
    for package in pkg/chartutil pkg/lint/rules; do
        flags="$flags -X helm.sh/helm/v3/$package.k8sVersionMajor=${kubernetes%.*}"
        flags="$flags -X helm.sh/helm/v3/$package.k8sVersionMinor=${kubernetes#*.}"
    done
    echo "install-helm.sh: building helm $version, which takes some minutes" >&2
    CGO_ENABLED=0 GOBIN="$tools" go install -trimpath -ldflags "$flags" "helm.sh/helm/v3/cmd/helm@$version" >&2
fi
echo "$tools/helm"
