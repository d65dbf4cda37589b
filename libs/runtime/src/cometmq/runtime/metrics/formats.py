# SPDX-License-Identifier: Apache-2.0
"""The formats of /metrics, and the one that a scraper asks for in its header `Accept`.

The names of all metrics and labels are plain, so they are the same in every escaping scheme.
prometheus_client's `choose_encoder` ignores q values and answers 1.0.0 with names escaped.
Sources: RFC 9110 (12.5.1), Prometheus' "Content negotiation" and "Exposition formats", OpenMetrics
1.0.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Format(NamedTuple):
    """A media type with the versions in which /metrics is written."""

    content_type: str
    is_openmetrics: bool


TEXT: Final = Format("text/plain; version=0.0.4; charset=utf-8", False)
_TEXT_1: Final = Format("text/plain; version=1.0.0; charset=utf-8", False)
_OPEN: Final = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", True)
_OPEN_0: Final = Format("application/openmetrics-text; version=0.0.1; charset=utf-8", True)
_FORMATS: Final = {
    ("application/openmetrics-text", "1.0.0"): _OPEN,
    ("application/openmetrics-text", "0.0.1"): _OPEN_0,
    ("application/openmetrics-text", ""): _OPEN_0,
    ("application/*", ""): _OPEN,
    ("text/plain", "1.0.0"): _TEXT_1,
    ("text/plain", "0.0.4"): TEXT,
    ("text/plain", ""): TEXT,
    ("text/*", ""): TEXT,
    ("*/*", ""): TEXT,
}
_COUNTER: Final = re.compile(rb"^# TYPE (\S+) counter$", re.MULTILINE)
_HEADING: Final = re.compile(rb"^# (HELP|TYPE) (\S+) (.*)$", re.MULTILINE)
_TOTAL: Final = b"_total"


def format_of(accept: str) -> Format:
    """Return the format with the highest q value; the first one among equals, and text 0.0.4 if
    no format is acceptable.
    """
    found, found_q = TEXT, 0.0
    for name, version, q, escaping in _ranges(accept):
        wanted = _FORMATS.get((name, version))
        if wanted is None or q <= found_q:
            continue
        found, found_q = wanted, q
        if version == "1.0.0" and escaping == "allow-utf-8":
            found = wanted._replace(content_type=f"{wanted.content_type}; escaping={escaping}")
    return found


def _ranges(accept: str) -> Iterator[tuple[str, str, float, str]]:
    for part in accept.lower().split(","):
        name, *parameters = (it.strip() for it in part.split(";"))
        pairs = (it.partition("=") for it in parameters)
        given = {key.strip(): value.strip().strip('"') for key, _, value in pairs}
        try:
            q = float(given.get("q", "1"))
        except ValueError:
            q = 0.0
        yield name, given.get("version", ""), q, given.get("escaping", "")


def as_openmetrics(text: bytes) -> bytes:
    """Return the lines of metrics in text format for OpenMetrics, without its last line.

    There, counters are named without `_total`, and quotes in a help text are escaped.
    """
    counters = set(_COUNTER.findall(text))

    def heading(match: re.Match[bytes]) -> bytes:
        word, name, rest = match.groups()
        if word == b"HELP":
            rest = rest.replace(b'"', rb"\"")
        elif name in counters and not name.endswith(_TOTAL):
            rest = b"unknown"
        return b"# %b %b %b" % (word, name.removesuffix(_TOTAL) if name in counters else name, rest)

    return _HEADING.sub(heading, text)
