# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.cli`: the `cometmq` command, run by a given interpreter."""

from cometmq.cli.entry import main

main()
