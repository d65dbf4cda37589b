# SPDX-License-Identifier: Apache-2.0
"""JSON bodies in Java's dialect.

Compatibility: Java writes integer keys without quotes (`{0:"a"}`) and objects as keys
(`{{"queueId":0}:1}`), neither of which is JSON. Every version of RocketMQ reads quoted integers,
so this module writes them. Object keys are written as Java does: RocketMQ 5.5 (fastjson 2) does not
read the strict form, a string with the JSON of the object, which 4.9.4 and 5.3.3 accept. Both forms
are read. Null members are treated as missing, because Java omits nulls.

A body is read by the first of these readers that accepts it:

- the strict JSON decoder in C
- the same decoder, after regular expressions have quoted the keys of the dialect
- the parser of this module, which takes 2 us per token, for bodies of up to TOKENS_MAX tokens

Bounds
    A server decodes requests by `decode_bounded`, in less than 20 ms for 1 MiB. Clients decode
    answers by `decode_json`; the largest table that fits into a frame takes 2 s, and every other
    answer less than 4 s. Files that this program has stored are decoded by `decode_file`, without
    these bounds.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.types import Buffer

T = TypeVar("T")

DEPTH_MAX: Final = 64
TOKENS_MAX: Final = 100_000
"""Maximum number of tokens that the Python parser reads, in up to 0.2 s. Only bodies with control
characters, surrogates, or braces in names need it; Java does not escape these.
"""

KEY_PARTS: Final = 8
KEY_TOKENS: Final = 100
"""The number of tokens that a string key in the dialect counts as, besides one for each
character.
"""
FREE_OBJECTS: Final = 1_024


class Bounds(NamedTuple):
    """Limits on a body; a body that exceeds one of them is refused."""

    object_bytes_min: int
    """The minimum average size of the objects in a body: an object with only defaults costs 0.5 us,
    and 1 MiB could contain 350,000."""
    parts_max: int
    """Maximum number of containers, members and items in a body that is not strict JSON, or whose
    values have other types than expected. A string that begins with a brace may be a key, and
    counts KEY_PARTS more."""
    tokens_max: int
    """Maximum number of tokens that the Python parser reads."""
    key_tokens_max: int
    """Maximum number of tokens in all string keys of a body together."""


REQUEST: Final = Bounds(40, 10_000, 2_500, 0)
"""Clients write at least 40 bytes for a queue, and 100 for a subscription; a heartbeat with nulls
has 20 parts for each topic."""
ANSWER: Final = Bounds(10, 2_000_000, TOKENS_MAX, TOKENS_MAX)
"""In a frame of 16 MiB, the offsets of 110,000 queues have 1.6 million parts, 14 for each queue. A
table of all groups' offsets has 2 parts, in at least 12 bytes, for each group."""
FILE: Final = Bounds(1, sys.maxsize, TOKENS_MAX, sys.maxsize)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode_bounded(type_: type[T], data: Buffer) -> T:
    """Decode a request as `decode_json` does, within 20 ms for 1 MiB."""
    return _decode(type_, data, REQUEST)


def decode_json(type_: type[T], data: Buffer) -> T:
    """Decode an answer to a typed value; raise RemoteProtocolError if it does not fit the type, or
    has too many parts to be decoded in one step.

    Decoding is as lenient as in Java: unknown members are ignored, missing ones take their
    defaults, and numbers and booleans may be strings.
    """
    return _decode(type_, data, ANSWER)


def decode_file(type_: type[T], data: Buffer) -> T:
    """Decode a file that this program or a Java broker has stored, as `decode_json` does."""
    return _decode(type_, data, FILE)


def _decode(type_: type[T], data: Buffer, bounds: Bounds) -> T:
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_, strict=False)
    text = bytes(data)
    count, count_max = text.count(b"{"), FREE_OBJECTS + len(text) // bounds.object_bytes_min
    if count > count_max:
        raise _too_many(text, count, "objects", count_max)
    try:
        with suppress(msgspec.DecodeError, ValueError):  # the dialect reader decides
            return decoder.decode(text)  # type: ignore[no-any-return]  # cached as Any
        _check_parts(text, bounds.parts_max)
        tree = _parse(text, bounds.tokens_max)
        with suppress(msgspec.ValidationError):  # a map's key objects may be strings
            return msgspec.convert(tree, type_, strict=False, str_keys=True)
        tree = _Keys(bounds.key_tokens_max).expand(tree)
        return msgspec.convert(tree, type_, strict=False, str_keys=True)
    except RecursionError as exc:
        raise RemoteProtocolError("a JSON text is nested too deeply") from exc
    except (msgspec.ValidationError, ValueError) as exc:
        raise RemoteProtocolError(f"a JSON text has an unexpected shape: {exc}") from exc


def _check_parts(text: bytes, count_max: int) -> None:
    count = sum(map(text.count, (b"{", b"[", b",", b":"))) + KEY_PARTS * text.count(b'"{')
    if count > count_max:
        raise _too_many(text, count, "parts, and is broken or in Java's dialect", count_max)


def _too_many(text: bytes, count: int, what: str, count_max: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a JSON text of {len(text)} bytes has {count} {what}; at most {count_max} are accepted"
    )


def encode_json(value: object) -> bytes:
    """Return the body that Java would write, but with quoted integer keys; members that are None
    are omitted.
    """
    keys: list[bytes] = []

    def hold(key: object) -> str:
        keys.append(_KEYS.encode(key))
        return _KEY_MARK

    data = msgspec.json.Encoder(enc_hook=hold).encode(value)
    if keys:
        pieces = [b""] * (2 * len(keys) + 1)
        pieces[::2], pieces[1::2] = data.split(b'"%b"' % _KEY_MARK.encode()), keys
        data = b"".join(pieces)
    return _NULL_MEMBER.sub(_without_null, data) if b":null" in data else data


_KEYS: Final = msgspec.json.Encoder(order="sorted")  # by name, as fastjson
_KEY_MARK: Final = os.urandom(8).hex()
"""Stands for a key object until the rest is encoded; unknown to peers, so no name can equal it."""

# Quotes inside strings are escaped, so a bare quote before a name begins a member.
_NULL_MEMBER: Final = re.compile(rb'([{,])(?:"[A-Za-z][A-Za-z0-9]*":null(,|(?=})))+')


def _without_null(match: re.Match[bytes]) -> bytes:
    """Return the replacement for a run of null members: a brace, a comma or nothing."""
    opened_with, closed_with = match.group(1), match.group(2)
    if opened_with == b"{":
        return b"{"
    return b"," if closed_with == b"," else b""


def _parse(data: Buffer | str, tokens_max: int) -> Any:
    """Return the same tree as `parse_dialect`, except that key objects may be strings."""
    text = data if isinstance(data, str) else _text(data)
    if not _SURROGATE.search(text):
        with suppress(ValueError, RecursionError):
            return _without_nulls(_STRICT.decode(text), text)
        for quoted in _with_quoted_keys(text):
            with suppress(ValueError, RecursionError):
                return _without_nulls(_STRICT.decode(quoted), text)
    return _parse_text(text, tokens_max)


def _text(data: Buffer) -> str:
    return str(data, "utf-8", "replace").removeprefix("\ufeff")  # as fastjson; editors write it


def _without_nulls(tree: Any, text: str) -> Any:
    return _pruned(tree) if "null" in text else tree


def _pruned(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_pruned(item) for item in tree]
    if isinstance(tree, dict):
        return {key: _pruned(value) for key, value in tree.items() if value is not None}
    return tree


def _with_quoted_keys(text: str) -> Iterator[str]:
    """Yield the text with quoted keys: only objects, whatever the names are; then also numbers, in
    the form that servers send; then in the form of their files, which has spaces before keys.
    """
    yield _OBJECT_KEY.sub(_quoted_object, text)
    # Splitting at the numbers is four times as fast as substituting them.
    yield _OBJECT_KEY.sub(_quoted_object, '"'.join(_NUMBER_KEY.split(text)))
    yield _OBJECT_KEY.sub(_quoted_object, _SPACED_KEY.sub(r'\1"\2"', text))


def _quoted_object(match: re.Match[str]) -> str:
    return encode_basestring(match.group())


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_ANY: Final = msgspec.json.Decoder()
_STRICT: Final = json.JSONDecoder(strict=False, parse_constant=_no_number)
# These patterns may match inside a string, which then ends early and is followed by no separator:
# such a text is no longer JSON, and `parse_dialect` reads the original.
_NUMBER_KEY: Final = re.compile(r"(?<=[{,])(-?[0-9]{1,20}+)(?=:)")
_SPACED_KEY: Final = re.compile(r"([{,][ \t\r\n]*+)(-?[0-9]{1,20}+)(?=[ \t\r\n]*+:)")
# Inside a string, a quote is escaped, and no letter follows the quote that ends it.
_OBJECT_KEY: Final = re.compile(r'(?<=[{,])\{[ \t\r\n]*+"[A-Za-z][^{}\\]*+\}(?=:)')
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class _KeyObject(dict[Any, Any]):
    """An object as the key of a map; hashable by identity until it is converted to a struct."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Keys:
    """Replaces string keys that contain an object by this object."""

    def __init__(self, tokens_max: int) -> None:
        """Decode at most about `tokens_max` tokens of the dialect in all keys together."""
        self._left = tokens_max

    def expand(self, tree: Any) -> Any:
        """Return a copy of the tree in which keys are objects where their strings contain one."""
        if isinstance(tree, list):
            return [self.expand(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        return {self._key(key): self.expand(value) for key, value in tree.items()}

    def _key(self, key: Any) -> Any:
        if not (isinstance(key, str) and key.startswith("{")):
            return key
        try:
            value = _ANY.decode(key)
        except (msgspec.DecodeError, ValueError):
            self._left -= KEY_TOKENS + len(key)
            if self._left < 0:
                return key
            try:
                value = _parse(key, len(key))
            except RemoteProtocolError:
                return key
        return _KeyObject(_pruned(value)) if isinstance(value, dict) else key


_TOKEN: Final = re.compile(
    r'[ \t\r\n]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([][{}:,])'
    r"|(-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]{1,9})?|[A-Za-z_$][A-Za-z0-9_$]*+))",
    re.DOTALL,
)
_CLOSING: Final = {"{": "}", "[": "]"}


def parse_dialect(data: Buffer) -> Any:
    """Parse a body in Java's dialect into dicts, lists and scalars; an object as a key becomes the
    text of its JSON. Raise RemoteProtocolError for other texts.

    The parser is iterative and bounds the depth, so hostile nesting raises an error instead of
    overflowing the stack.
    """
    return _parse_text(_text(data), sys.maxsize)


def _parse_text(text: str, tokens_max: int) -> Any:
    try:
        return _pruned(_STRICT.decode(_with_texts_as_keys(text, tokens_max)))
    except ValueError as error:
        raise RemoteProtocolError(f"a JSON text is broken: {error}") from error


def _with_texts_as_keys(text: str, tokens_max: int) -> str:
    """Return a text with quotes around its keys, and without lone surrogates; raise ValueError, now
    or when the result is decoded, if it is in no form that Java writes.
    """
    pieces: list[str] = []
    open_ends: list[str] = []
    key_start = key_depth = -1  # of the object that is a key
    last = ""
    for string, mark, word in _tokens(text, tokens_max):
        piece = string or mark or word
        is_key = last == "{" or (last == "," and open_ends[-1:] == ["}"])
        last = piece
        if mark in _CLOSING:
            if len(open_ends) == DEPTH_MAX or (is_key and (mark == "[" or key_start >= 0)):
                raise ValueError(f"it is nested more than {DEPTH_MAX} deep, or in its keys")
            if is_key:
                key_start, key_depth = len(pieces), len(open_ends)
            open_ends.append(_CLOSING[mark])
        elif mark in ("}", "]"):
            if not open_ends or open_ends.pop() != mark:
                raise ValueError(f"an unexpected {mark}")
            if key_start >= 0 and key_depth == len(open_ends):
                piece = " ".join((*pieces[key_start:], mark))
                _STRICT.decode(piece)
                del pieces[key_start:]
                piece, key_start = encode_basestring(piece), -1
        elif word and is_key:
            piece = f'"{word}"'
        pieces.append(piece)
    return " ".join(pieces)


def _tokens(text: str, count_max: int) -> Iterator[tuple[str, str, str]]:
    """Yield the strings, the marks and the other words; two of each three are empty."""
    position = 0
    while match := _TOKEN.match(text, position):
        position, count_max = match.end(), count_max - 1
        if count_max < 0:
            raise ValueError("it is in no form that Java writes")
        string, mark, word = match.groups("")
        if string and _SURROGATE.search(string):
            string = encode_basestring(_STRICT.decode(string).encode("utf-8", "replace").decode())
        yield string, mark, word
    if text[position:].strip(" \t\r\n"):
        raise ValueError(f"an unexpected {text[position : position + 20]!r}")
