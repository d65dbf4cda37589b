# SPDX-License-Identifier: Apache-2.0
"""The history in a folder: snapshots, compacted hours, aggregates, earlier reports."""
