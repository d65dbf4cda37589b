# SPDX-License-Identifier: Apache-2.0
"""Commands about the conversation of a sender and a consumer: requests, replies and traces."""
