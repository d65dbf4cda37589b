# SPDX-License-Identifier: Apache-2.0
"""The percent language of `consume --format`, after that of rpk."""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from cometmq.client.errors import InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.insight import times
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.visible import visible, visible_line

HELP: Final = """\
%t topic         %k keys           %v body          %d time stored      %i number in this run
%p queue         %K their length   %V its length    %D time sent        %r redeliveries
%b broker        %g tag            %h{...} properties                   %H their number
%o offset        %m message id     %O offset message id                 %% a percent sign
\\n \\t \\r \\\\ \\0 \\xHH  these bytes

Braces choose a form: {hex}, {base64} or {json} after texts, as in %v{json}; {hex} after numbers;
{iso} or {strftime[%F %T]} (UTC) after times, which are milliseconds otherwise. %h{%k=%v } prints
the name %k and the value %v of each property. Nothing is added: end the format with \\n.

Examples: '%o %k: %v\\n'   '%d{iso} %g %v{json}\\n'   '%v\\0' for xargs -0
"""

HEADERS_FORMAT: Final = (
    "%b:%p:%o  stored %d{iso}  id %m  tag %g  keys %k  redeliveries %r\\n%h{  %k: %v\\n}\\n%v\\n\\n"
)
"""What `--headers` prints."""

Piece = Callable[[MessageExt, int], bytes]
"""Renders a part of the output from a message and its number."""
Form = Callable[[bytes], bytes]
Body = Callable[[MessageExt], bytes] | None

FORMAT_CHARS_MAX: Final = 10_000
_BYTE: Final = re.compile(r"x([0-9A-Fa-f]{2})")
_BACKSLASH: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_STRFTIME: Final = re.compile(r"strftime\[(.*)\]", re.DOTALL)

_TEXTS: Final[Mapping[str, Callable[[MessageExt], bytes]]] = {
    "t": lambda it: it.topic.encode(),
    "b": lambda it: it.queue.broker_name.encode(),
    "k": lambda it: _keys(it).encode(),
    "g": lambda it: (it.tag or "").encode(),
    "v": lambda it: it.body,
    "m": lambda it: it.message_id.encode(),
    "O": lambda it: it.offset_message_id.encode(),
}
_NUMBERS: Final[Mapping[str, Callable[[MessageExt, int], int]]] = {
    "p": lambda it, _: it.queue.queue_id,
    "o": lambda it, _: it.queue_offset,
    "V": lambda it, _: len(it.body),
    "K": lambda it, _: len(_keys(it).encode()),
    "H": lambda it, _: len(it.user_properties),
    "r": lambda it, _: it.reconsume_times,
    "i": lambda _, number: number,
}
_TIMES: Final[Mapping[str, Callable[[MessageExt], int]]] = {
    "d": lambda it: it.store_timestamp,
    "D": lambda it: it.born_timestamp,
}
_FORMS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    "hex": lambda data: data.hex().encode(),
    "base64": b64encode,
    "json": lambda data: msgspec.json.encode(data.decode("utf-8", "replace")),
}
_NUMBER_FORMS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "": lambda number: b"%d" % number,
    "hex": lambda number: b"%x" % number,
}


def compiled(
    text: str, body: Callable[[MessageExt], bytes] | None = None, *, for_terminal: bool = False
) -> Piece:
    """Return a function that renders messages; raise InvalidArgument, with the place, if the format
    is wrong.

    `body` renders the body instead of its own bytes. A terminal gets texts that senders have chosen
    with their control characters written out.
    """
    if len(text) > FORMAT_CHARS_MAX:
        raise InvalidArgument(f"--format is longer than {FORMAT_CHARS_MAX:,} characters")
    pieces = _pieces(text, body, for_terminal=for_terminal)
    return lambda message, number: b"".join(piece(message, number) for piece in pieces)


def _shown_body(data: bytes) -> bytes:
    return visible(data.decode("utf-8", "backslashreplace")).encode()


def _shown_name(data: bytes) -> bytes:
    return visible_line(data.decode("utf-8", "backslashreplace")).encode()


def _pieces(text: str, body: Body, *, for_terminal: bool) -> list[Piece]:
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        sign, at = text[at], at + 1
        if sign == "\\":
            data, at = _escaped(text, at)
            pieces.append(_literal(data))
        elif sign == "%":
            piece, at = _piece(text, at, body, for_terminal=for_terminal)
            pieces.append(piece)
        else:
            pieces.append(_literal(sign.encode("utf-8", "surrogateescape")))
    return pieces


def _literal(data: bytes) -> Piece:
    return lambda _message, _number: data


def _escaped(text: str, at: int) -> tuple[bytes, int]:
    """Return the byte of the escape at index `at`, and the index after it."""
    found = _BYTE.match(text, at)
    if found is not None:
        return bytes.fromhex(found[1]), found.end()
    if text[at : at + 1] not in _BACKSLASH:
        raise _wrong(at, f"\\{text[at : at + 1]} is no escape: give \\n \\t \\r \\\\ \\0 or \\xHH")
    return _BACKSLASH[text[at]], at + 1


def _piece(text: str, at: int, body: Body, *, for_terminal: bool) -> tuple[Piece, int]:
    sign, start = text[at : at + 1], at
    name, whole = (_shown_name, _shown_body) if for_terminal else (bytes, bytes)
    at += 1
    if sign == "%":
        return _literal(b"%"), at
    form, at = _braces(text, at)
    if sign == "h":
        return _properties(form or "%k=%v\\n", start, name), at
    if sign in _TEXTS:
        read = body if sign == "v" and body is not None and not form else _TEXTS[sign]
        plain = whole if sign == "v" else name
        return _text_piece(read, _chosen(_FORMS, form, start) if form else plain), at
    if sign in _NUMBERS:
        return _number_piece(_NUMBERS[sign], _chosen(_NUMBER_FORMS, form, start)), at
    if sign in _TIMES:
        return _time_piece(_TIMES[sign], _time_form(form, start)), at
    raise _wrong(start, f"%{sign} is no escape: --format help lists all; %% is a percent")


def _text_piece(read: Callable[[MessageExt], bytes], form: Callable[[bytes], bytes]) -> Piece:
    return lambda message, _: form(read(message))


def _number_piece(read: Callable[[MessageExt, int], int], form: Callable[[int], bytes]) -> Piece:
    return lambda message, number: form(read(message, number))


def _time_piece(read: Callable[[MessageExt], int], form: Callable[[int], bytes]) -> Piece:
    return lambda message, _: form(read(message))


def _time_form(form: str, at: int) -> Callable[[int], bytes]:
    if form == "iso":
        return lambda time_ms: (times.shown(time_ms) or "").encode()
    found = _STRFTIME.fullmatch(form)
    if found is None:
        return _chosen(_NUMBER_FORMS, form, at, ("iso", "strftime[...]"))
    pattern = found[1]

    def written(time_ms: int) -> bytes:
        if not times.is_known(time_ms):
            return b""
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(pattern).encode()

    return written


def _properties(form: str, at: int, safe: Form) -> Piece:
    """Return the Piece that renders `form` once for each property."""
    parts = re.split(r"(%[kv%])", form)
    if any("%" in part for part in parts[::2]):
        raise _wrong(at, "%h{...} may contain %k, %v and %% only")
    texts = [part.encode() if "%" in part else _unescaped(part) for part in parts]

    def piece(message: MessageExt, _number: int) -> bytes:
        return b"".join(
            {b"%k": safe(name.encode()), b"%v": safe(value.encode()), b"%%": b"%"}.get(text, text)
            for name, value in message.user_properties.items()
            for text in texts
        )

    return piece


def _unescaped(text: str) -> bytes:
    """Return a text that contains no percent signs, with its escapes replaced."""
    found = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "\\":
            data, at = _escaped(text, at + 1)
        else:
            data, at = text[at].encode("utf-8", "surrogateescape"), at + 1
        found += data
    return bytes(found)


def _braces(text: str, at: int) -> tuple[str, int]:
    """Return the text between braces, which may contain pairs of braces, and the index
    after them.
    """
    if text[at : at + 1] != "{":
        return "", at
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[at + 1 : end], end + 1
    raise _wrong(at, "{ has no }")


def _chosen(
    forms: Mapping[str, Callable[..., bytes]], form: str, at: int, more: tuple[str, ...] = ()
) -> Callable[..., bytes]:
    if form not in forms:
        names = [name for name in (*forms, *more) if name]
        raise _wrong(
            at, f"{{{form}}} is no form here: give {', '.join(names)}{did_you_mean(form, names)}"
        )
    return forms[form]


def _keys(message: MessageExt) -> str:
    return " ".join(key for key in message.keys if key != message.message_id)


def _wrong(at: int, why: str) -> InvalidArgument:
    return InvalidArgument(f"--format, character {at + 1}: {why}")
