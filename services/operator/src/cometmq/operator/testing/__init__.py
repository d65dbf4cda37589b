# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests: groups and their states, and an API server without nodes."""
