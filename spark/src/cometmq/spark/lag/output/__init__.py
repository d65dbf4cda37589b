# SPDX-License-Identifier: Apache-2.0
"""Output forms of a report: pages for readers, JSON for programs, metrics for Prometheus."""
