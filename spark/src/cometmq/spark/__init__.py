# SPDX-License-Identifier: Apache-2.0
"""RocketMQ in Spark: a data source, an offset collector, and lag reports."""
