# SPDX-License-Identifier: Apache-2.0
"""RocketMQ remoting protocol: sans-io core and asyncio transport."""
