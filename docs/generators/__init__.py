# SPDX-License-Identifier: Apache-2.0
"""Generators for the pages that are derived from the code, one module per kind of page."""
