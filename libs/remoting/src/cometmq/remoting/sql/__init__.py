# SPDX-License-Identifier: Apache-2.0
"""The tokens and error messages of SQL92 filters, which brokers and clients share."""
