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
Body = Callable[[MessageExt], bytes] | None

FORMAT_CHARS_MAX: Final = 10_000
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
    "d": lambda it, _: it.store_timestamp,
    "D": lambda it, _: it.born_timestamp,
}
_TIMES: Final = frozenset("dD")
_FORMS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": b64encode,
    "json": lambda data: msgspec.json.encode(data.decode("utf-8", "replace")),
}
_NUMBER_FORMS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "": lambda number: b"%d" % number,
    "hex": lambda number: b"%x" % number,
}


def compiled(text: str, body: Body = None, *, for_terminal: bool = False) -> Piece:
    """Return a function that renders messages; raise InvalidArgument, with the place, if the format
    is wrong.

    `body` renders the body instead of its own bytes. A terminal gets texts that senders have chosen
    with their control characters written out.
    """
    if len(text) > FORMAT_CHARS_MAX:
        raise InvalidArgument(f"--format is longer than {FORMAT_CHARS_MAX:,} characters")
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        if text[at] == "%" and text[at + 1 : at + 2] != "%":
            piece, at = _piece(text, at + 1, body, for_terminal=for_terminal)
            pieces.append(piece)
        else:
            data, at = _literal(text, at)
            pieces.append(lambda _message, _number, data=data: data)  # type: ignore[misc]
    return lambda message, number: b"".join(piece(message, number) for piece in pieces)


def _literal(text: str, at: int) -> tuple[bytes, int]:
    """Return the bytes of the character, the escape or the percent sign at an index, and the index
    after it.
    """
    if text[at] not in "\\%":
        return text[at].encode("utf-8", "surrogateescape"), at + 1
    sign = text[at + 1 : at + 2]
    if text[at] == "%":
        return b"%", at + 2
    if sign == "x" and re.fullmatch("[0-9A-Fa-f]{2}", text[at + 2 : at + 4]):
        return bytes.fromhex(text[at + 2 : at + 4]), at + 4
    if sign not in _BACKSLASH:
        raise _wrong(at + 1, f"\\{sign} is no escape: give \\n \\t \\r \\\\ \\0 or \\xHH")
    return _BACKSLASH[sign], at + 2


def _piece(text: str, at: int, body: Body, *, for_terminal: bool) -> tuple[Piece, int]:
    sign, start = text[at : at + 1], at
    form, at = _braces(text, at + 1)
    name = _shown(visible_line) if for_terminal else bytes
    if sign == "h":
        return _properties(form or "%k=%v\\n", start, name), at
    if sign in _TEXTS:
        read = body if sign == "v" and body is not None and not form else _TEXTS[sign]
        write = _shown(visible) if sign == "v" and for_terminal else name
        write = _chosen(_FORMS, form, start) if form else write
        return (lambda message, _: write(read(message))), at
    if sign not in _NUMBERS:
        raise _wrong(start, f"%{sign} is no escape: --format help lists all; %% is a percent")
    number = _NUMBERS[sign]
    shown = _time_form(form, start) if sign in _TIMES else _chosen(_NUMBER_FORMS, form, start)
    return (lambda message, at: shown(number(message, at))), at


def _shown(safe: Callable[[str], str]) -> Callable[[bytes], bytes]:
    return lambda data: safe(data.decode("utf-8", "backslashreplace")).encode()


def _time_form(form: str, at: int) -> Callable[[int], bytes]:
    if form == "iso":
        return lambda time_ms: (times.shown(time_ms) or "").encode()
    found = _STRFTIME.fullmatch(form)
    if found is None:
        return _chosen(_NUMBER_FORMS, form, at, ("iso", "strftime[...]"))

    def written(time_ms: int) -> bytes:
        if not times.is_known(time_ms):
            return b""
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(found[1]).encode()

    return written


def _properties(form: str, at: int, safe: Callable[[bytes], bytes]) -> Piece:
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
    found, at = b"", 0
    while at < len(text):
        data, at = _literal(text, at)
        found += data
    return found


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
