# SPDX-License-Identifier: Apache-2.0
"""Refuses a settings file that belongs to a different program, or to none.

Otherwise the program would start with the defaults, on ports and in folders that its operator does
not expect.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.spelling import closest
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.settings.mistakes import LINE_FORM

SHOWN_MAX: Final = 5


def refuse_wrong_file(name: str, loaded: Loaded[Any], file: Path | None) -> None:
    """Raise SettingsError if the file has keys of a different program, or no known key at all.

    A file without keys is accepted, and so are RocketMQ's keys in `FOREIGN` of the settings struct,
    which the program `name` keeps but does not use.
    """
    unknown = loaded.mistakes.places.keys()
    for other, program in PROGRAMS.items():
        if other != name and (found := sorted(program.own_keys & unknown)):
            verb = "is no setting" if len(found) == 1 else "are no settings"
            raise SettingsError(
                f"{file} is a settings file of cometmq {other}: {', '.join(found)} {verb} of"
                f" cometmq {name}; run cometmq {other} -c {file}, or give {name} a file of its own"
            )
    if unknown and not loaded.has_known_key:
        fields = fields_of(cast("type[msgspec.Struct]", type(loaded.value)))
        shown = [_shown(key, loaded, fields) for key in list(unknown)[:SHOWN_MAX]]
        rest = f" and {len(unknown) - SHOWN_MAX} more" if len(unknown) > SHOWN_MAX else ""
        raise SettingsError(
            f"{file} has no setting of cometmq {name}, only {', '.join(shown)}{rest}; give the path"
            f" of a settings file, or see the settings with cometmq {name} --print-settings"
        )


def _shown(key: str, loaded: Loaded[Any], fields: Collection[str]) -> str:
    line = loaded.mistakes.places[key].rpartition(":")[2]
    if key in loaded.mistakes.prose:
        return f"{loaded.mistakes.prose[key]!r} in line {line} ({LINE_FORM})"
    guess = closest(key, fields)
    return key if guess is None else f"{key} (did you mean {guess}?)"
