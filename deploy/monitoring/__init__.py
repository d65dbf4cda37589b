# SPDX-License-Identifier: Apache-2.0
"""Dashboards, alert rules, and a Prometheus for development."""
