# SPDX-License-Identifier: Apache-2.0
"""Test helpers: groups and their states, and an API server without nodes."""
