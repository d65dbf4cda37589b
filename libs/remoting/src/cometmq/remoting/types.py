# SPDX-License-Identifier: Apache-2.0
"""Small types that every part of the protocol shares."""

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Anything that holds bytes and can be sliced, written or hashed without a copy."""


class Serialization(IntEnum):
    """Encoding of a header; the number is the first byte of the frame's second word."""

    JSON = 0
    ROCKETMQ = 1


class Language(IntEnum):
    """Language of the sender, by its number in binary headers; JSON headers hold the name."""

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
    """Who sends a request: a client to a server, or a server on a client's connection."""

    TO_SERVER = "to-server"
    TO_CLIENT = "to-client"


_LANGUAGES_BY_NAME: Final = {language.name: language for language in Language}
_LANGUAGES_BY_CODE: Final = {language.value: language for language in Language}


def language_of(value: str | int | None) -> Language:
    """Return the language that a header names; a missing one is JAVA, an unknown one OTHER."""
    if value is None:
        return Language.JAVA
    if isinstance(value, str):
        return _LANGUAGES_BY_NAME.get(value, Language.OTHER)
    return _LANGUAGES_BY_CODE.get(value, Language.OTHER)
