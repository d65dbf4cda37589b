#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# helm 3.19.5, built by `go install helm.sh/helm/v3/cmd/helm@v3.19.5`. `helm template` without a
# cluster assumes Kubernetes 1.20, released in 2020, where the binaries of the same version assume
# 1.34: their build sets it by linker flags. A chart with a kubeVersion of this decade does not render.
. "$(dirname "$0")/common.sh"
CGO_ENABLED=0 GOBIN=$folder go install helm.sh/helm/v3/cmd/helm@v3.19.5 2>log
mkdir -p chart/templates
printf 'apiVersion: v2\nname: chart\nversion: 1.0.0\n' >chart/Chart.yaml
echo 'version: {{ .Capabilities.KubeVersion }}' >chart/templates/one.yaml
expect "version that a chart sees" "version: v1.20.0" "$(./helm template chart | tail -1)"
echo 'kubeVersion: ">=1.25.0-0"' >>chart/Chart.yaml
expect "a chart for 1.25 and newer" "refused" "$(./helm template chart >log 2>&1 && echo rendered || echo refused)"
expect "the same with --kube-version 1.34.0" "version: v1.34.0" "$(./helm template chart --kube-version 1.34.0 | tail -1)"
