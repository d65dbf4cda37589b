# SPDX-License-Identifier: Apache-2.0
"""Probable mistakes in a settings file or the environment that do not prevent a start."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.runtime.variables import unread_line

LINE_FORM: Final = "a setting is NAME=VALUE, and a comment begins with #"


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
