# SPDX-License-Identifier: Apache-2.0
"""Churn and load: group members, crowds, misbehaving peers, and the verdicts."""
