# SPDX-License-Identifier: Apache-2.0
"""From snapshots to the tables of a report."""
