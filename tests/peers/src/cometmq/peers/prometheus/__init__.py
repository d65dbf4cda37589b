# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's Prometheus, and lists the queries of dashboards, alerts and autoscalers."""
