# SPDX-License-Identifier: Apache-2.0
"""The changes of a cluster: each is declared once, for commands, forms, tools and the audit log."""
