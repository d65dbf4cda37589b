# SPDX-License-Identifier: Apache-2.0
"""Makes this broker a member of a group: connects `group` and `replication` with its parts."""
