# SPDX-License-Identifier: Apache-2.0
"""Small types that all parts of the protocol share."""

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Objects whose bytes can be sliced, sent or hashed without a copy."""


class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of the headers of requests and answers; their fields have Java's names on the wire."""


_NUMBER_TYPES: Final = frozenset("bcdoxXneEfFgG%")
"""The final characters of format specifications that ask for a number."""


class NamedNumber(IntEnum):
    """A RocketMQ number that is printed as its name but compares as a number."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        """Return the name; for a numeric format such as `:d`, return the number."""
        return format(int(self) if spec[-1:] in _NUMBER_TYPES else self.name, spec)


class Serialization(IntEnum):
    """Encoding of a header; the frame's fifth byte holds its number."""

    JSON = 0
    ROCKETMQ = 1


class Language(IntEnum):
    """The sender's language: a number in binary headers, a name in JSON headers."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Direction(StrEnum):
    """The direction of a request: client to server, or server to client on the same connection."""

    TO_SERVER = "to-server"
    TO_CLIENT = "to-client"


_LANGUAGES_BY_NAME: Final = {language.name: language for language in Language}
_LANGUAGES_BY_CODE: Final = {language.value: language for language in Language}


def language_of(value: str | int | None) -> Language:
    """Return the language that a header names: JAVA if it is missing, OTHER if it is unknown."""
    if value is None:
        return Language.JAVA
    if isinstance(value, str):
        return _LANGUAGES_BY_NAME.get(value, Language.OTHER)
    return _LANGUAGES_BY_CODE.get(value, Language.OTHER)
