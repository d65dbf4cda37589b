# SPDX-License-Identifier: Apache-2.0
"""Backends that store a consensus record: memory, a file on one host, etcd, Kubernetes."""
