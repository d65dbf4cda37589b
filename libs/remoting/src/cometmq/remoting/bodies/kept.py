# SPDX-License-Identifier: Apache-2.0
"""Keeps members of stored tables that our structs do not know, as a newer RocketMQ writes them.

Types are extended by fields for these members, so that copies, changes and encodings of an entry
keep them without further work.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET

from cometmq.remoting.bodies.dialect import decode_file

S = TypeVar("S", bound=msgspec.Struct)

NAMES_MAX: Final = 256
"""Maximum number of unknown members of all entries of a table that are kept."""
_PREFIX: Final = "kept_"


def decode_keeping(type_: type[S], entry: type[msgspec.Struct], data: bytes) -> S:
    """Decode a stored struct whose last field is a table of entries; keep all unknown members."""
    *_, table = msgspec.structs.fields(type_)
    tree = decode_file(dict[str, Any], data)
    found = decode_file(extended(type_, tree), data)
    entries = tree.get(table.encode_name) or {}
    names = {name for one in entries.values() if isinstance(one, dict) for name in one}
    if (whole_entry := extended(entry, names)) is not entry:
        rows = msgspec.convert(entries, dict[str, whole_entry], strict=False)  # type: ignore[valid-type]
        found = msgspec.structs.replace(found, **{table.name: rows})
    return found


def kept_members(value: Any) -> dict[str, Any]:
    """Return the members of a decoded struct that its type did not know before."""
    return {
        field.encode_name: found
        for field in msgspec.structs.fields(value)
        if field.name.startswith(_PREFIX) and (found := getattr(value, field.name)) is not UNSET
    }


def set_members(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct that are set, by their names in Python."""
    return {
        name: found for name, found in msgspec.structs.asdict(value).items() if found is not UNSET
    }


def extended(type_: type[S], members: Iterable[str]) -> type[S]:
    """Return a type that also has fields for those of the members that it lacks."""
    known = {field.encode_name for field in msgspec.structs.fields(type_)}
    return _with_fields(type_, tuple(sorted(set(members) - known)[:NAMES_MAX]))


@lru_cache(maxsize=64)
def _with_fields(type_: type[S], unknown: tuple[str, ...]) -> type[S]:
    if not unknown:
        return type_
    names = {f"{_PREFIX}{number}": name for number, name in enumerate(unknown)}
    body = {"__annotations__": dict.fromkeys(names, Any), **dict.fromkeys(names, UNSET)}
    made: Any = type(type_)
    return cast("type[S]", made(type_.__name__, (type_,), body, rename=names))
