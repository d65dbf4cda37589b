# SPDX-License-Identifier: Apache-2.0
"""Places where a consensus record can be stored: memory, a file on one host, etcd, Kubernetes."""
