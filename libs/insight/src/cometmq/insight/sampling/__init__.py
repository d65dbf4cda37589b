# SPDX-License-Identifier: Apache-2.0
"""Statistics of the messages of a topic, from a sample of all its queues."""
