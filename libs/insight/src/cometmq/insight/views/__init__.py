# SPDX-License-Identifier: Apache-2.0
"""The views of a cluster: each is declared once, for commands, pages, JSON and tools."""
