# SPDX-License-Identifier: Apache-2.0
"""Integer types for headers and bodies, with the bounds of Java's int and long.

With the bounds, the decoder rejects hostile numbers, on which packing would fail later.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
