# SPDX-License-Identifier: Apache-2.0
"""Exports topics, groups and rights of a cluster as one file, and plans the import of one."""
