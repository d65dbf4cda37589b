# SPDX-License-Identifier: Apache-2.0
"""How much of a topic one analysis reads."""

from typing import Final

import msgspec

COUNT_DEFAULT: Final = 5_000
COUNT_MAX: Final = 100_000
BYTES_MAX: Final = 256 << 20
TIME_MS_MAX: Final = 10_000


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one analysis."""

    count_max: int = COUNT_DEFAULT
    bytes_max: int = BYTES_MAX
    time_ms: int = TIME_MS_MAX
    begin_ms: int | None = None
    """Read only messages stored at this time or later."""
