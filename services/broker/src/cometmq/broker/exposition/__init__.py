# SPDX-License-Identifier: Apache-2.0
"""Metric families of topics and consumer groups, and families under the names of RocketMQ."""
