# SPDX-License-Identifier: Apache-2.0
"""Slow work of a running store: syncs, checkpoints, new files, retention."""
