# SPDX-License-Identifier: Apache-2.0
r"""Splits the property strings of many messages at once, without a loop over messages.

A property string is `key \x01 value \x02 key \x01 value`. Both separators are located in all
strings at once, and Arrow slices the pieces between them.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_PAIR_SEPARATOR: Final = 2
_VALUE_SEPARATOR: Final = 1
_COUNTED_MAX: Final = 1 << 22


def cut(data: pa.Buffer, bounds: Ints, step: int, first: int, kind: pa.DataType) -> pa.Array:
    """Slice every `step`th piece of a buffer, starting with piece `first`.

    `bounds` must not decrease; each piece lies between two neighbours. Arrow copies a piece in
    20 ns, while numpy indexing takes 5 ns per byte.
    """
    count = len(bounds) // step
    if count == 0:
        return pa.array([], kind)
    offsets = pa.py_buffer(bounds.astype(np.int32))
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, data])
    taken = pieces.take(pa.array(np.arange(first, len(bounds), step)))
    return taken.cast(kind)


class PropertyColumns:
    """Key-value pairs of many strings; if a key occurs twice in a string, the last one wins."""

    def __init__(self, texts: pa.StringArray) -> None:
        self._count = len(texts)
        offsets, data = _parts(texts)
        bounds, self._rows = _pairs(offsets, np.frombuffer(data, np.uint8))
        self._keys = cut(data, bounds, 4, 0, pa.string())
        self._values = cut(data, bounds, 4, 2, pa.string())
        encoded = self._keys.dictionary_encode()
        self._names: list[str] = encoded.dictionary.to_pylist()
        self._codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self._drop_repeated()

    def values(self, name: str) -> pa.StringArray:
        """Return one property of each string, null if absent."""
        if name not in self._names:
            return pa.nulls(self._count, pa.string())
        places = np.flatnonzero(self._codes == self._names.index(name))
        indices = np.full(self._count, -1, np.int64)
        indices[self._rows[places]] = places
        return self._values.take(pa.array(indices, mask=indices < 0))

    def maps(self, kind: pa.MapType) -> pa.MapArray:
        ends = np.cumsum(np.bincount(self._rows, minlength=self._count))
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self._keys, self._values, type=kind)

    def _drop_repeated(self) -> None:
        """If a key occurs more than once in a string, keep the last one."""
        names = max(1, len(self._names))
        places = self._rows * names + self._codes
        if names * self._count <= _COUNTED_MAX:
            is_unique = len(places) == 0 or int(np.bincount(places).max()) == 1
        else:
            is_unique = len(np.unique(places)) == len(places)
        if is_unique:
            return
        _, from_end = np.unique(places[::-1], return_index=True)
        kept = np.sort(len(places) - 1 - from_end)
        self._rows, self._codes = self._rows[kept], self._codes[kept]
        self._keys = self._keys.take(pa.array(kept))
        self._values = self._values.take(pa.array(kept))


def _parts(texts: pa.StringArray) -> tuple[Ints, Any]:
    """Return the offsets and bytes of strings created by `cut`."""
    _, offsets, data = texts.buffers()
    begin = texts.offset
    numbers = np.frombuffer(offsets, np.int32)[begin : begin + len(texts) + 1].astype(np.int64)
    return numbers, data if data is not None else pa.py_buffer(b"")


def _pairs(offsets: Ints, data: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Return the bounds of each complete pair's key and value, and the index of its string."""
    used = data[: offsets[-1]]
    separators = np.flatnonzero(used == _PAIR_SEPARATOR)
    # Pairs neither overlap nor nest, so sorted starts and sorted ends match one to one.
    begins = np.sort(np.concatenate([offsets[:-1], separators + 1]))
    ends = np.sort(np.concatenate([separators, offsets[1:]]))
    value_separators = np.concatenate([np.flatnonzero(used == _VALUE_SEPARATOR), [len(used)]])
    middles = value_separators[np.searchsorted(value_separators, begins)]
    is_whole = (begins < middles) & (middles + 1 < ends)
    begins, middles, ends = begins[is_whole], middles[is_whole], ends[is_whole]
    bounds = np.column_stack([begins, middles, middles + 1, ends]).ravel()
    return bounds, np.searchsorted(offsets, begins, side="right") - 1
