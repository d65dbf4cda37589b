# SPDX-License-Identifier: Apache-2.0
"""The templates of `produce --template`: {{Count}}, {{Unix}}, and {{Random 5 20}}."""

import random
import re
import string
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

import msgspec

from cometmq.client import InvalidArgument, Message
from cometmq.client.clock import wall_ms
from cometmq.insight import times
from cometmq.remoting.spelling import did_you_mean

RANDOM_MAX: Final = 1 << 20
_TAG: Final = re.compile(rb"\{\{(?!\{)(.*?)(\}\}|\Z)", re.DOTALL)
_CALL: Final = re.compile(r"\s*\.?(\w*)(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LETTERS: Final = string.ascii_letters + string.digits
_AS_THEY_ARE: Final = "without --template, braces are sent as they are"
SHOWN_MAX: Final = 40
"""Characters of a wrong template that its refusal repeats."""


def _random(low: int = 10, high: int | None = None) -> str:
    """Return a random text of `low` to `high` letters and digits."""
    count = random.randint(low, low if high is None else high)  # noqa: S311  # no secret
    return "".join(random.choices(_LETTERS, k=count))  # noqa: S311


_VALUES: Final[Mapping[str, Callable[[int], str]]] = {
    "Count": str,
    "Unix": lambda _: str(wall_ms()),
    "TimeStamp": lambda _: times.shown(wall_ms()) or "",
    "ID": lambda _: uuid4().hex,
    "Random": lambda _: _random(),
}


def expanded(data: bytes, number: int) -> bytes:
    """Return bytes with their templates replaced; `number` is that of the message, from 1.

    Raise InvalidArgument for a template that is unknown, not closed, or has wrong numbers.
    """
    return _TAG.sub(lambda found: _value(found, number).encode(), data)


def _value(found: re.Match[bytes], number: int) -> str:
    shown, inner = (found[it].decode("utf-8", "replace") for it in (0, 1))
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."
    call = _CALL.fullmatch(inner)
    name, words = (call[1], call[2].split()) if call else ("", [])
    if not found[2]:
        raise InvalidArgument(f"{shown} has no }}}} at its end; {_AS_THEY_ARE}")
    if name not in _VALUES:
        raise InvalidArgument(
            f"{shown} is no template: give {', '.join(_VALUES)}{did_you_mean(name, _VALUES)};"
            f" {_AS_THEY_ARE}"
        )
    if not words:
        return _VALUES[name](number)
    numbers = [int(it) for it in words if _NUMBER.fullmatch(it)]
    is_range = len(numbers) == len(words) <= 2 and 0 < numbers[0] <= numbers[-1] <= RANDOM_MAX
    if name != "Random" or not is_range:
        raise InvalidArgument(
            f"{shown}: only Random takes numbers, a length or the shortest and the longest, from 1"
            f" to {RANDOM_MAX:,}: {{{{Random 5 20}}}}"
        )
    return _random(*numbers)


def expanded_message(message: Message, number: int) -> Message:
    """Return a message with the templates in its body, tag, keys and properties replaced."""

    def text(value: str) -> str:
        return expanded(value.encode(), number).decode()

    return msgspec.structs.replace(
        message,
        body=expanded(message.body, number),
        tag=None if message.tag is None else text(message.tag),
        keys=text(message.keys) if isinstance(message.keys, str) else message.keys,
        properties={name: text(value) for name, value in message.properties.items()},
    )
