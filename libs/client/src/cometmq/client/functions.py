# SPDX-License-Identifier: Apache-2.0
"""Checks the application's functions and hooks when they are registered, not when called."""

import inspect
from typing import Final

from cometmq.client.errors import InvalidArgument
from cometmq.client.shown import shown

_YIELDS: Final = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_function(
    function: object, name: str, *parameters: str, kinds: str = "plain or async"
) -> None:
    """Raise InvalidArgument, with the expected form, unless `function` accepts these parameters."""
    form = f"def {name}({', '.join(parameters)})"
    if not callable(function):
        raise InvalidArgument(
            f"{name} is {shown(function)}, which cannot be called: give a function `{form}`, "
            f"{kinds}"
        )
    if any(yields(function) for yields in _YIELDS):
        raise InvalidArgument(f"{name} is a generator, which would never run: use `return`")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise InvalidArgument(
            f"{name} cannot be called as {name}({', '.join(parameters)}): {error}. "
            f"Write it as `{form}`, {kinds}"
        ) from error


def check_plain_function(function: object, name: str, *parameters: str) -> None:
    """Like `check_function`, but also reject coroutine functions, because no event loop is running
    here.
    """
    check_function(function, name, *parameters, kinds="not async")
    if is_coroutine_function(function):
        raise InvalidArgument(
            f"{name} is a coroutine function, which a blocking client cannot run: write "
            f"`def {name}({', '.join(parameters)})`, or use cometmq.client instead of "
            "cometmq.client.sync"
        )


def is_coroutine_function(function: object) -> bool:
    """Return whether a call returns a coroutine; works for objects with an async `__call__` too."""
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_methods(value: object, name: str, example: str, *methods: str) -> None:
    """Raise InvalidArgument if an object lacks one of the methods."""
    for method in methods:
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise InvalidArgument(
                f"{name} must be an object with the method {method}, such as {example}, not "
                f"{shown(value)}"
            )


def check_hook(hook: object, *methods: str) -> None:
    """Raise if an object lacks one of the methods, or if a method is a coroutine function."""
    for name in methods:
        form = f"{type(hook).__name__}.{name}"
        check_function(getattr(hook, name, None), form, "context", kinds="not async")
        if is_coroutine_function(getattr(hook, name)):
            raise InvalidArgument(
                f"{type(hook).__name__}.{name} is a coroutine function, which would never run: "
                f"write `def {name}(self, context)`"
            )
