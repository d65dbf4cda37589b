# SPDX-License-Identifier: Apache-2.0
"""Finds keys and variables that a program does not read although they mean safety."""

from collections.abc import Collection, Mapping
from functools import partial

from cometmq.remoting.spelling import closest
from cometmq.runtime.redaction import HIDDEN, looks_secret, without_logins
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.settings.fields import SettingsField, variable_of
from cometmq.runtime.settings.foreign import Foreign
from cometmq.runtime.variables import unread, unread_line

Given = Mapping[str, tuple[object, object]]
"""Values and their origins by key."""


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
