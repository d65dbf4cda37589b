# SPDX-License-Identifier: Apache-2.0
"""The workloads, faults and verdicts of the crash tests."""
