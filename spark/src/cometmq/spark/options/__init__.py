# SPDX-License-Identifier: Apache-2.0
"""The options of the data source: their table, their values, offsets as JSON."""
