# SPDX-License-Identifier: Apache-2.0
"""Servers that many test files share."""
