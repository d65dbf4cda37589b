# SPDX-License-Identifier: Apache-2.0
"""The broker at its name servers: its addresses, its identity, and its registrations."""
