# SPDX-License-Identifier: Apache-2.0
"""The options of the data source: definitions, values, offsets as JSON."""
