# SPDX-License-Identifier: Apache-2.0
"""Controls a Kubernetes cluster with kubectl and helm, and runs load in a pod, for tests/e2e."""
