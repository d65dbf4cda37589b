# SPDX-License-Identifier: Apache-2.0
"""Integer types for headers and bodies, with the bounds of Java's int and long.

The bounds make the decoder reject hostile numbers; otherwise packing would fail on them later.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
