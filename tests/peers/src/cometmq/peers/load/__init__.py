# SPDX-License-Identifier: Apache-2.0
"""Churn and load: members, crowds, misbehaving peers, and the verdicts."""
