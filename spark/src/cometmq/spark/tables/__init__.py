# SPDX-License-Identifier: Apache-2.0
"""The tables `offsets`, `progress`, `groups` and `brokers`: columns, and rows from answers."""
