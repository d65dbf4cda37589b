# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/client-options.md from the structs of the Python client's options."""

import inspect
import types
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from cometmq.client.settings import (
    ClientOptions,
    ConsumerOptions,
    LitePullOptions,
    ProducerOptions,
    PullOptions,
    PushOptions,
    TransactionOptions,
)

from .markdown import code, notice, table

GROUPS: Final = (
    ClientOptions,
    ProducerOptions,
    TransactionOptions,
    ConsumerOptions,
    PushOptions,
    LitePullOptions,
    PullOptions,
)
HEAD: Final = ("option", "type", "bounds", "default", "what it does")


def client_options_page() -> str:
    """Return the page: every option with its type, bounds and default."""
    lines = ["# Options of the Python client", "", notice("client-options"), ""]
    lines += [
        "Durations are milliseconds. `ProducerOptions` and `ConsumerOptions` also have the options",
        "of `ClientOptions`, `TransactionOptions` those of `ProducerOptions`, and `PushOptions`,",
        "`LitePullOptions` and `PullOptions` those of `ConsumerOptions`.",
        "How to use them: [the guide](../guides/client.md).",
    ]
    for group in GROUPS:
        summary = (group.__doc__ or "").strip()
        lines += ["", f"## {group.__name__}", "", summary, "", *table(HEAD, _rows(group))]
    return "\n".join(lines) + "\n"


def _rows(group: type[msgspec.Struct]) -> Iterable[tuple[str, ...]]:
    hints = typing.get_type_hints(group, include_extras=True)
    default = group()
    for name in inspect.get_annotations(group):
        kind, *bounds, description = typing.get_args(hints[name])
        least, most = (bounds[0].ge, bounds[0].le) if bounds else (None, None)
        yield (
            code(name),
            _type_name(kind),
            _bounds(least, most),
            _default(getattr(default, name)),
            description,
        )


def _type_name(kind: object) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_type_name(part) for part in typing.get_args(kind))
    name = getattr(kind, "__name__", str(kind))
    return "None" if name == "NoneType" else name


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f"{least} to {most}" if most is not None else f"from {least}"


def _default(value: object) -> str:
    if isinstance(value, Enum):
        return code(f"{type(value).__name__}.{value.name}")
    if value == "":
        return "(empty)"
    if isinstance(value, msgspec.Struct):
        return code(f"{type(value).__name__}()")
    return code(str(value))
