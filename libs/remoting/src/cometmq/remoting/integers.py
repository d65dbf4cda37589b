# SPDX-License-Identifier: Apache-2.0
"""Integer types for headers and bodies, with the bounds of Java's int and long.

Because of the bounds, the decoder rejects numbers that could not be packed later.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
