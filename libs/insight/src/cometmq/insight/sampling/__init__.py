# SPDX-License-Identifier: Apache-2.0
"""What the messages of a topic are like, from a sample of all its queues."""
