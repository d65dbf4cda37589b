# SPDX-License-Identifier: Apache-2.0
"""Filters that the broker applies to messages: tags, and SQL expressions on properties."""
