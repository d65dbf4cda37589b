# SPDX-License-Identifier: Apache-2.0
"""Topics, groups and rights of a cluster as one file, the import of one, and brokers' settings."""
