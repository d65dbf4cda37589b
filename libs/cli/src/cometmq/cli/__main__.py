# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.cli`: the `cometmq` command for those who know only the interpreter."""

from cometmq.cli.entry import main

main()
