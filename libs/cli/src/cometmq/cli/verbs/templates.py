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
_TAG: Final = re.compile(rb"\{\{\s*\.?(\w*)((?:\s+\d+)*)\s*\}\}")
_LETTERS: Final = string.ascii_letters + string.digits


def _random(low: int = 10, high: int | None = None) -> str:
    """Return a random text of `low` to `high` letters and digits."""
    count = random.randint(low, max(low, high or low))  # noqa: S311  # no secret
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

    Raise InvalidArgument for an unknown template.
    """

    def value(found: re.Match[bytes]) -> bytes:
        name, args = found[1].decode("utf-8", "replace"), [int(it) for it in found[2].split()]
        if name not in _VALUES:
            raise InvalidArgument(
                f"{{{{{name}}}}} is no template: give {', '.join(_VALUES)}"
                f"{did_you_mean(name, _VALUES)}; without --template, braces are sent as they are"
            )
        if args and (name != "Random" or len(args) > 2 or max(args) > RANDOM_MAX):
            raise InvalidArgument(
                f"{found[0].decode('utf-8', 'replace')}: only Random takes numbers: a length, or"
                f" the shortest and the longest, up to {RANDOM_MAX:,}"
            )
        return (_random(*args) if args else _VALUES[name](number)).encode()

    return _TAG.sub(value, data)


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
