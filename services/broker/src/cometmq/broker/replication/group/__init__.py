# SPDX-License-Identifier: Apache-2.0
"""CometMQ's own replication stream between the members of a broker group."""
