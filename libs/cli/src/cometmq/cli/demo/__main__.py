# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.cli.demo`: exit status 0 only if every file came back unchanged."""

import sys

from cometmq.cli.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
