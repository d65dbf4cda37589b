# SPDX-License-Identifier: Apache-2.0
"""The broker as a member of a group: carries out the decisions of `cometmq.ha`."""
