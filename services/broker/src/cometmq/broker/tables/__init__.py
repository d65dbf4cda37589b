# SPDX-License-Identifier: Apache-2.0
"""Topics, subscription groups and committed offsets: the tables with files of their own."""
