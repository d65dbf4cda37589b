# SPDX-License-Identifier: Apache-2.0
"""The name under which Spark discovers the data source `rocketmq` without registration."""

from cometmq.spark.source import RocketMQDataSource

DefaultSource = RocketMQDataSource

__all__ = ["DefaultSource"]
