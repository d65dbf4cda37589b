# SPDX-License-Identifier: Apache-2.0
"""Commands about the way of messages between clients: requests, replies, traces and delays."""
