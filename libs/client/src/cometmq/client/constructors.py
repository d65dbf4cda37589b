# SPDX-License-Identifier: Apache-2.0
"""Explains unknown keyword arguments of clients, most of which are options in the wrong place."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from cometmq.remoting.spelling import closest, did_you_mean

InitT = TypeVar("InitT", bound=Callable[..., None])


def explaining(init: InitT) -> InitT:
    """Make the `__init__` of a client raise a TypeError that names the right argument or option.

    The class's `OPTIONS` is the class of its options. Python's own error names only the wrong
    argument.
    """
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def explained(self: Any, *args: object, **arguments: object) -> None:
        wrong = [name for name in arguments if name not in known]
        if wrong:
            raise TypeError(_unknown(type(self), wrong[0], known))
        init(self, *args, **arguments)

    return cast("InitT", explained)


def _unknown(kind: Any, name: str, known: Sequence[str]) -> str:
    text = f"{kind.__name__} has no argument {name}"
    if meant := did_you_mean(name, known):
        return f"{text}{meant}"
    options = kind.OPTIONS
    option = closest(name, options.__struct_fields__)
    if option is None:
        return f"{text}: its arguments are {', '.join(known)}"
    given = f"options={options.__name__}({option}=...)"
    return f"{text}: give {given}" if option == name else f"{text}; did you mean {given}?"
