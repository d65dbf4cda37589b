# SPDX-License-Identifier: Apache-2.0
"""Probable mistakes in a settings file or the environment: some are only told, and those that a
program must not start with are refused (keys that mean safety, the file of another program).
"""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.spelling import closest
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.redaction import HIDDEN, looks_secret, without_logins
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.settings.fields import SettingsField, fields_of, variable_of
from cometmq.runtime.settings.foreign import Foreign
from cometmq.runtime.variables import unread, unread_line

if TYPE_CHECKING:
    from cometmq.runtime.settings import Loaded

LINE_FORM: Final = "a setting is NAME=VALUE, and a comment begins with #"
SHOWN_MAX: Final = 5
Given = Mapping[str, tuple[object, object]]
"""Values and their origins by key."""


class Mistakes(msgspec.Struct, frozen=True):
    """Keys and lines of a settings file, and environment variables, that are probably mistakes."""

    misspelt: Mapping[str, str] = {}
    """The unknown keys that nearly match a setting, each with that setting's name."""
    places: Mapping[str, str] = {}
    """Where each unknown key is, as FILE:LINE."""
    prose: Mapping[str, str] = {}
    """The text of each line that is probably not meant as a setting, by its unknown key."""
    repeated: Mapping[str, list[str]] = {}
    """The places of each key that the file gives more than once; the last value counts."""
    unread: Mapping[str, str] = {}
    """The variables that no program reads, each with a similar one, or with an empty string."""

    def lines(self) -> list[str]:
        """Return a sentence for each mistake."""
        misspelt = [
            f"{name} in {self.places[name]} is no setting; did you mean {guess}?"
            for name, guess in self.misspelt.items()
        ]
        repeated = [
            f"{name} is given more than once, in {' and '.join(dict.fromkeys(places))}; the last"
            " value counts, as in RocketMQ"
            for name, places in self.repeated.items()
        ]
        prose = [
            f"{self.places[name]} is no setting, but {text!r}: {LINE_FORM}"
            for name, text in self.prose.items()
        ]
        unread = [unread_line(name, [guess]) for name, guess in self.unread.items()]
        return misspelt + repeated + prose + unread

    def facts(self) -> dict[str, dict[str, str]]:
        """Return the misspelt keys and the stray text of the file, as fields of a log event."""
        prose = {self.places[name]: text for name, text in self.prose.items()}
        return {
            fact: dict(found)
            for fact, found in (("did_you_mean", self.misspelt), ("no_settings", prose))
            if found
        }


def refuse_foreign(
    foreign: Foreign, in_file: Given, variables: Mapping[str, str], prefix: str, faults: Faults
) -> None:
    """Add a fault for each of RocketMQ's keys and their variables that asks for what is refused."""
    for name in foreign.refused:
        raw, origin = in_file.get(name, ("", None))
        faults.attempt(partial(foreign.check, name, raw, origin))
        variable = variable_of(prefix, name)
        raw = variables.get(variable, "")
        faults.attempt(partial(foreign.check, name, raw, f"environment {variable}"))


def misspelt_keys(
    unknown: Given,
    known: Collection[str],
    fields: Mapping[str, SettingsField],
    foreign: Foreign,
    faults: Faults,
) -> dict[str, str]:
    """Return the unknown keys that nearly match a setting, each with the name of the setting.

    For an access control or TLS setting, and for what is refused, add a fault instead: with a
    mistyped `aclEnable=true`, a broker would start unprotected although its operator believes that
    it is protected.
    """
    found: dict[str, str] = {}
    for name, (raw, origin) in sorted(unknown.items()):
        is_right = name in known or name in foreign
        guess = None if is_right else closest(name, known) or _refused(name, raw, foreign)
        field = None if guess is None else fields.get(guess)
        if (field is not None and field.is_guard) or guess in foreign:
            shown = HIDDEN if looks_secret(guess or name) else raw
            faults.add(f"{name}={shown}: unknown setting; did you mean {guess}? (from {origin})")
        elif guess is not None:
            found[name] = guess
    return found


def _refused(name: str, raw: object, foreign: Foreign) -> str | None:
    """Return the refused key that an unknown one nearly matches, if it then asks for something."""
    guess = closest(name, foreign.refused)
    if guess is None or 2 * len(name) < len(guess):  # prose begins names, too
        return None
    return guess if foreign.refused[guess].asks(raw) else None


def unread_variables(
    variables: Mapping[str, str], prefix: str, own: Mapping[str, SettingsField], faults: Faults
) -> dict[str, str]:
    """Return the variables that no program reads, each with a similar name; add faults as
    `misspelt_keys` does.
    """
    found: dict[str, str] = {}
    for name, guess in unread(variables, prefix, own).items():
        field = own.get(guess)
        if field is not None and field.is_guard:
            shown = HIDDEN if field.is_secret else without_logins(variables[name])
            faults.add(f"{name}={shown}: {unread_line(name, [guess])}")
        else:
            found[name] = guess
    return found


def refuse_wrong_file(name: str, loaded: "Loaded[Any]", file: Path | None) -> None:
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


def _shown(key: str, loaded: "Loaded[Any]", fields: Collection[str]) -> str:
    line = loaded.mistakes.places[key].rpartition(":")[2]
    if key in loaded.mistakes.prose:
        return f"{loaded.mistakes.prose[key]!r} in line {line} ({LINE_FORM})"
    guess = closest(key, fields)
    return key if guess is None else f"{key} (did you mean {guess}?)"
