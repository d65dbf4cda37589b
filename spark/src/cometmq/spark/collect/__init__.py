# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of all offsets of a cluster."""
