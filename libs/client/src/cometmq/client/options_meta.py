# SPDX-License-Identifier: Apache-2.0
"""The metaclass of options; it suggests the right name for a misspelt option."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args, get_type_hints

import msgspec

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.spelling import did_you_mean, nearest


class OptionsMeta(msgspec.StructMeta):
    """Checks the names of options when an options object is created.

    A struct has no `__init__` to override, and msgspec's own error is a bare "Unexpected keyword
    argument".
    """

    if not TYPE_CHECKING:  # type checkers would take this signature, which accepts any option

        def __call__(cls, *args: object, **options: object) -> object:  # noqa: N805
            """Return the options; raise InvalidArgument for a name that is not an option of this
            class."""
            _check_names(cls, args, options)
            return super().__call__(**options)


def _check_names(
    kind: OptionsMeta, args: tuple[object, ...], options: Mapping[str, object]
) -> None:
    if args:
        raise InvalidArgument(
            f"options are given by name, as in {kind.__name__}(namesrv='127.0.0.1:9876'); those in "
            f"a dict as {kind.__name__}(**options)"
        )
    for name in options:
        if name not in kind.__struct_fields__:
            raise InvalidArgument(f"{kind.__name__} has no option {name}{_meant(kind, name)}")


def _meant(kind: OptionsMeta, name: str) -> str:
    """Return a hint: our name for a Java option, a similar name, or the class that has the
    option.
    """
    for own, description in _descriptions(kind):
        if f"({name})" in description:
            return f": RocketMQ's {name} is {own} here"
    if found := did_you_mean(name, kind.__struct_fields__):
        return found
    others = [other.__name__ for other in _family(kind) if name in other.__struct_fields__]
    if others:
        return f": it is an option of {' and '.join(others)}"
    return nearest(name, kind.__struct_fields__) or f": help({kind.__name__}) lists its options"


def _descriptions(kind: OptionsMeta) -> Iterator[tuple[str, str]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for fact in get_args(hint)[1:]:
            if isinstance(fact, str):
                yield name, fact


def _family(kind: OptionsMeta) -> Iterator[OptionsMeta]:
    """Yield the classes of all clients' options."""
    root = [one for one in kind.__mro__ if isinstance(one, OptionsMeta)][-1]
    pending = [root]
    while pending:
        one = pending.pop()
        yield one
        subclasses: list[OptionsMeta] = type.__subclasses__(one)  # type: ignore[arg-type, assignment]
        pending += subclasses
