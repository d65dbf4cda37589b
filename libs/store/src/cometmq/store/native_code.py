# SPDX-License-Identifier: Apache-2.0
"""The functions of a native message path that may replace Python code of the store."""

from typing import NamedTuple

from cometmq.store.log.checksums import FileCrcs
from cometmq.store.writing.ranges import ReadRange


class NativeCode(NamedTuple):
    """Native functions; wherever one is None, Python code is used instead."""

    read_range: ReadRange | None = None
    """Reads records of the log, for their dispatch."""
    file_crcs: FileCrcs | None = None
    """Computes the checksums of the log without the interpreter lock."""


NO_NATIVE_CODE = NativeCode()
