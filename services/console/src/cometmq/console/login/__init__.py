# SPDX-License-Identifier: Apache-2.0
"""Logins, sessions and roles: who a user is, and what the user may do."""
