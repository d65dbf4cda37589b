# SPDX-License-Identifier: Apache-2.0
"""Suggestions: completions for shells, and the likely name behind a misspelt one."""
