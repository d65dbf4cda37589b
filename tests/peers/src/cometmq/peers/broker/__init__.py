# SPDX-License-Identifier: Apache-2.0
"""Runs one CometMQ broker that tests start, kill and query, and whose files they read."""
