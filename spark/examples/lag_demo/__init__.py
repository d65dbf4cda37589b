# SPDX-License-Identifier: Apache-2.0
"""`make lag-demo`: runs groups with every kind of lag for two minutes, and reports on them.

`old_messages` fills the store before the broker starts, `groups` contains the consumers, and `run`
is the main program. The demo starts a broker, so it needs `cometmq-cli`.
"""
