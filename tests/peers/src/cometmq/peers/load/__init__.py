# SPDX-License-Identifier: Apache-2.0
"""Churn and load: members, crowds, disturbing peers, and the verdicts on what they saw."""
