# SPDX-License-Identifier: Apache-2.0
"""A broker group in front of the viewer: real load, a kill, a freeze, a switchover, a ledger."""
