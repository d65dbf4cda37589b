# SPDX-License-Identifier: Apache-2.0
"""The syntax of SQL92 filters, which brokers and clients share."""
