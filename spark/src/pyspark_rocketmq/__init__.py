# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find the data source `rocketmq` by itself."""

from cometmq.spark.source import RocketMQDataSource

DefaultSource = RocketMQDataSource

__all__ = ["DefaultSource"]
