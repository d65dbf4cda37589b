# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.spark.demo`: exit status 0 only if the report calls each group by its name."""

import sys

from cometmq.spark.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
