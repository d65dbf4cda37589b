# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.peers.ha_demo`: exit status 0 only if no acknowledged message is lost."""

import sys

from cometmq.peers.ha_demo.story import main

if __name__ == "__main__":
    sys.exit(main())
