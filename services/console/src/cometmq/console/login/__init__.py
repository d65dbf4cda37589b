# SPDX-License-Identifier: Apache-2.0
"""Who may: sessions, roles, and the ways to log in."""
