# SPDX-License-Identifier: Apache-2.0
"""Test helpers: sample broker groups and their states."""
