# SPDX-License-Identifier: Apache-2.0
"""The commands of `cometmq` that RocketMQ's mqadmin does not have, and their own modules."""
