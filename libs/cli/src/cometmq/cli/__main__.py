# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.cli`: the `cometmq` command under a chosen interpreter."""

from cometmq.cli.entry import main

main()
