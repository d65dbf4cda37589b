# SPDX-License-Identifier: Apache-2.0
"""`make lag-demo`: groups with every kind of lag for two minutes, and the report about them.

`old_messages` fills the store before the broker starts, `groups` are the consumers, `run` is the
main program. It starts a broker, so it needs `cometmq-cli`.
"""
