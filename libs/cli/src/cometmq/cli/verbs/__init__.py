# SPDX-License-Identifier: Apache-2.0
"""The commands of `cometmq` beyond RocketMQ's mqadmin, and the modules that only they use."""
