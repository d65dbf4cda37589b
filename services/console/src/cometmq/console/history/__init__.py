# SPDX-License-Identifier: Apache-2.0
"""Lag and rates of the last days."""
