# SPDX-License-Identifier: Apache-2.0
"""Bodies that a reader of JSON must refuse in its own words."""

import json
from collections.abc import Iterator
from typing import Any, Final

_WRONG: Final[tuple[Any, ...]] = (
    *(None, True, 7, -1, 10**400, 1e308, "", "x", "http://[", [], [None], [[7]], [{}]),
    *({}, {"x": {}}),
)
_TEXTS: Final = {
    "empty": b"",
    "half": b'{"a":',
    "text": b"<html>",
    "latin": b'{"a":"\xff"}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "NaN": b"NaN",
    "out of range": b"1e999",
    "long number": b"9" * 10_000,
}


def hostile(sample: Any) -> Iterator[tuple[str, bytes]]:
    """Yield bodies with their names: texts that are no JSON or extreme, alone and as each part of
    `sample`, then `sample` with other values and without each of its keys.

    Some of these may be valid answers.
    """
    yield from _TEXTS.items()
    for path, place in _places(sample):
        for name, text in _TEXTS.items():
            yield f"{path}={name}", _with(sample, place, "@@").replace(b'"@@"', text)
        for value in _WRONG:
            yield f"{path}={str(value)[:20]!r}", _with(sample, place, value)
        if isinstance(place[-1], str):
            yield f"no {path}", _with(sample, place, ...)


def _places(sample: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...]]]:
    items: Any = ()
    if isinstance(sample, dict):
        items = sample.items()
    elif isinstance(sample, list):
        items = enumerate(sample)
    for key, value in items:
        yield ".".join(map(str, (*place, key))), (*place, key)
        yield from _places(value, (*place, key))


def _with(sample: Any, place: tuple[Any, ...], value: Any) -> bytes:
    tree = json.loads(json.dumps(sample))
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return json.dumps(tree).encode()
