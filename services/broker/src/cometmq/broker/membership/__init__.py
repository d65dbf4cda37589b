# SPDX-License-Identifier: Apache-2.0
"""Makes a broker a member of a group: connects `group` and `replication` with the broker's
parts.
"""
