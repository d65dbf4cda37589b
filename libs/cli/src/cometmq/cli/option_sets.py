# SPDX-License-Identifier: Apache-2.0
"""Options of commands, and sets of options that several commands share."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast, get_type_hints

import msgspec
import typer

F = TypeVar("F", bound=Callable[..., Any])


def opt(*words: str, **more: Any) -> Any:
    """Return an option: its names, and its help as the last word."""
    return typer.Option(*words[:-1], help=words[-1], **more)


def arg(text: str, **more: Any) -> Any:
    """Return an argument with its help."""
    return typer.Argument(help=text, **more)


class OptionSet(msgspec.Struct, frozen=True, kw_only=True):
    """Options as the fields of a struct; each field has a Typer annotation and a default."""


def with_option_sets(command: F) -> F:
    """Replace each OptionSet parameter with the options in it, for Typer to read."""
    if not any(map(_is_set, command.__annotations__.values())):
        return command  # type hints are slow
    hints = get_type_hints(command, include_extras=True)
    sets = {name: kind for name, kind in hints.items() if _is_set(kind)}
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in sets:
            parameters += _options(sets[parameter.name], parameter)
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in sets.items():
            values[name] = kind(**{field: values.pop(field) for field in kind.__struct_fields__})
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return cast("F", run)


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionSet)


def _options(kind: type[OptionSet], parameter: inspect.Parameter) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
        for field in msgspec.structs.fields(kind)
    ]
