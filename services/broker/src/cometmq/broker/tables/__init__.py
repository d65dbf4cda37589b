# SPDX-License-Identifier: Apache-2.0
"""Topics, subscription groups and committed offsets, their files, and the journal of their
changes.
"""
