# SPDX-License-Identifier: Apache-2.0
"""Connections to name servers and brokers: discovery, routes, heartbeats, lifecycle."""
