# SPDX-License-Identifier: Apache-2.0
"""Access of Spark's driver and workers to name servers and brokers."""
