# SPDX-License-Identifier: Apache-2.0
"""The history below a folder: snapshots, compacted hours, aggregates, earlier reports."""
