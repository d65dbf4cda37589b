# SPDX-License-Identifier: Apache-2.0
"""The queues of one group member: assignment, locks, readers and offsets."""
