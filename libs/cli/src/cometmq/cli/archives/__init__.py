# SPDX-License-Identifier: Apache-2.0
"""`cometmq backup` and `cometmq restore`: the messages of topics in a folder of files."""
