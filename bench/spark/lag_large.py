# SPDX-License-Identifier: Apache-2.0
"""Time one report over a day of 80,000 series, which is 115 million rows."""

from lag import main

if __name__ == "__main__":
    main(80_000)
