# SPDX-License-Identifier: Apache-2.0
"""Copies of a broker's data: roles, streams, tables, and the gate that requests pass."""
