# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of everything that speaks the protocol; shipped, typed."""
