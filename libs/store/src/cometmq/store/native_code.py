# SPDX-License-Identifier: Apache-2.0
"""The functions of a native message path that may replace Python code of the store."""

from typing import NamedTuple

from cometmq.store.log.block_sums import BlockSums
from cometmq.store.writing.ranges import ReadRange


class NativeCode(NamedTuple):
    """Native functions; wherever one is None, Python code is used instead."""

    read_range: ReadRange | None = None
    """Reads records of the log, for their dispatch."""
    block_sums: BlockSums | None = None
    """Computes the checksums of the log without the interpreter lock."""


NO_NATIVE_CODE = NativeCode()
