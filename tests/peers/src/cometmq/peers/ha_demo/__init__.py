# SPDX-License-Identifier: Apache-2.0
"""The failover demo: a broker group under load, a kill, a freeze, a switchover, and a ledger."""
