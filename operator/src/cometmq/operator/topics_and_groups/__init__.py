# SPDX-License-Identifier: Apache-2.0
"""Topics and consumer groups that are declared as Kubernetes objects."""
