# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of all offsets in a cluster."""
