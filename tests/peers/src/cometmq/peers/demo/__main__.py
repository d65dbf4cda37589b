# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.peers.demo`: exit status 0 only if every file came back unchanged."""

import sys

from cometmq.peers.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
