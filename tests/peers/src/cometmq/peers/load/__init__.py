# SPDX-License-Identifier: Apache-2.0
"""Runs members, crowds and misbehaving peers for `make load`, and judges the results."""
