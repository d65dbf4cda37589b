# SPDX-License-Identifier: Apache-2.0
"""Connects Spark's driver and workers to name servers and brokers."""
