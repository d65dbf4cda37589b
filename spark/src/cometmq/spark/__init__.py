# SPDX-License-Identifier: Apache-2.0
"""RocketMQ in Spark: a data source, a collector of offsets, and lag reports."""
