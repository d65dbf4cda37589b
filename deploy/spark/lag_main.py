# SPDX-License-Identifier: Apache-2.0
"""`cometmq-lag` as a file, for spark-submit and the Spark operator to start in the driver's pod."""

from cometmq.spark.lag.cli import main

if __name__ == "__main__":
    main()
