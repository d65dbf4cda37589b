# SPDX-License-Identifier: Apache-2.0
"""Run `cometmq-lag` from a file that spark-submit or the Spark operator can start."""

from cometmq.spark.lag.cli import main

if __name__ == "__main__":
    main()
