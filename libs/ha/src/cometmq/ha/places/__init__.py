# SPDX-License-Identifier: Apache-2.0
"""Places that hold a consensus record: memory, a file of one host, etcd."""
