# SPDX-License-Identifier: Apache-2.0
"""Encodes answers with long lists in steps of a few milliseconds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.runtime.incremental import Steps

STEP_ITEMS: Final = 1_000


def encode_with_lists(around: msgspec.Struct, lists: Mapping[str, Sequence[Any]]) -> Steps[bytes]:
    """Return the JSON of a struct, whose named members are empty lists, with these lists."""
    whole = encode_json(around)
    for name, items in lists.items():
        pieces: list[bytes] = []
        for start in range(0, len(items), STEP_ITEMS):
            pieces.append(encode_json(items[start : start + STEP_ITEMS])[1:-1])
            yield
        # Quotes inside strings are escaped, so this text is the member itself.
        begin, found, end = whole.partition(b'"%b":[' % name.encode())
        assert end.startswith(b"]")
        whole = b"".join((begin, found, b",".join(pieces), end))
    return whole
