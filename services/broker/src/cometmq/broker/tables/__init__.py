# SPDX-License-Identifier: Apache-2.0
"""Topics, subscription groups and committed offsets: the tables that are saved in their
own files.
"""
