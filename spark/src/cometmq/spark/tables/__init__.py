# SPDX-License-Identifier: Apache-2.0
"""Offsets, progress, groups and brokers as tables."""
