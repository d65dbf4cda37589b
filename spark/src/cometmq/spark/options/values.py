# SPDX-License-Identifier: Apache-2.0
"""Converts the text of options to values; errors name the option."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import FieldInfo

from cometmq.spark.errors import OptionError
from cometmq.spark.options.foreign import advice

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h)")


def find_option(name: str, known: Mapping[str, FieldInfo]) -> FieldInfo:
    """Look up an option; the error for an unknown option suggests the closest name."""
    info = known.get(name.lower())
    if info is not None:
        return info
    other = advice(name)
    if other is not None:
        raise OptionError(f"unknown option `{name}`: {other}")
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean `{known[near[0]].encode_name}`?" if near else "see the list of options"
    raise OptionError(f"unknown option `{name}`: {hint}")


def option_value(info: FieldInfo, text: str) -> Any:
    try:
        return msgspec.convert(text.strip(), info.type, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at")[0]
        raise OptionError(f"option `{info.encode_name}`={text!r}: {reason}") from None


def duration_ms(text: str) -> int:
    """Convert a duration whose format has been validated."""
    match = _DURATION.fullmatch(text)
    assert match is not None
    return int(match[1]) * _UNITS_MS[match[2]]
