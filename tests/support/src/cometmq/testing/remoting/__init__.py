# SPDX-License-Identifier: Apache-2.0
"""Typed test helpers for programs that speak the protocol; part of the package."""
