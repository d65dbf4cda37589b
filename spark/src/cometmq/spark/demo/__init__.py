# SPDX-License-Identifier: Apache-2.0
"""`make lag-demo`: groups in every kind of trouble for two minutes, and the report that says so.

`old_messages` writes what the broker finds when it starts, `groups` are the consumers, `run`
tells the story. It needs `cometmq-cli`, whose broker it starts.
"""
