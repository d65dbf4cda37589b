# SPDX-License-Identifier: Apache-2.0
"""Fuzz the decoders, then a live broker and name server: exit 1 if anything is found."""

import argparse
import os
import sys

from tests.fuzz.decoders import fuzz_decoders
from tests.fuzz.live import fuzz_servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="mutated inputs in all")
    parser.add_argument("--frames", type=int, default=20_000, help="hostile frames in all")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same inputs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    is_clean = True
    if arguments.inputs:
        is_clean = fuzz_decoders(
            inputs=arguments.inputs, seed=arguments.seed, processes=max(1, arguments.processes)
        )
    if arguments.frames:
        is_clean = fuzz_servers(frames=arguments.frames, seed=arguments.seed) and is_clean
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
