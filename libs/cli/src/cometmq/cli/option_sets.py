# SPDX-License-Identifier: Apache-2.0
"""Options of commands, and sets of options that several commands share."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
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


def as_command(command: F) -> F:
    """Return a function that Typer reads: each OptionSet parameter is replaced by the options in
    it, and a coroutine function runs on an event loop.
    """
    is_async = inspect.iscoroutinefunction(command)
    if not is_async and not any(map(_is_set, command.__annotations__.values())):
        return command  # type hints are slow
    hints = get_type_hints(command, include_extras=True)
    sets = {name: kind for name, kind in hints.items() if _is_set(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        is_set = parameter.name in sets
        parameters += _options(sets[parameter.name], parameter) if is_set else [parameter]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in sets.items():
            values[name] = kind(**{field: values.pop(field) for field in kind.__struct_fields__})
        result = command(**values)
        if is_async:
            import_module("cometmq.cli.connecting").run(result)

    return cast("F", with_parameters(run, parameters))


def with_parameters(function: F, parameters: Sequence[inspect.Parameter]) -> F:
    """Give a function of keywords the parameters that Typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {it.name: it.annotation for it in parameters}
    return function


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionSet)


def _options(kind: type[OptionSet], parameter: inspect.Parameter) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
        for field in msgspec.structs.fields(kind)
    ]
