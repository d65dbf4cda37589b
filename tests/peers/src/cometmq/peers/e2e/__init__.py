# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster through kubectl and helm, and load from a pod, for tests/e2e."""
