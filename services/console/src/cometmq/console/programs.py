# SPDX-License-Identifier: Apache-2.0
"""The certificates of programs without a port to ask, read from the files that their
settings name.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cometmq.insight.certificates import certificates_at
from cometmq.insight.model import Certificate
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.certificate_files import expiries_named_in
from cometmq.runtime.home import at_home


class Program(NamedTuple):
    """A program and its settings file."""

    name: str
    file: Path


def programs_in(text: str) -> list[Program]:
    """Parse `NAME=FILE;NAME=FILE`; raise SettingsError for another form."""
    found = []
    for word in (it.strip() for it in text.split(";") if it.strip()):
        name, separator, path = word.partition("=")
        if not (name.strip() and separator and path.strip()):
            raise SettingsError(f"programConfigs={word}: it must have the form NAME=FILE")
        found.append(Program(name.strip(), Path(at_home(path.strip(), f"programConfigs={word}"))))
    return found


def check_programs(programs: Sequence[Program]) -> None:
    """Raise SettingsError if a settings file cannot be used."""
    for it in programs:
        expiries_named_in(it.file)


def certificates_in(programs: Sequence[Program]) -> list[Certificate]:
    """Return the certificates that the files name, without those of unusable files; blocks."""
    return [one for it in programs for one in _certificates(it)]


def _certificates(program: Program) -> Iterator[Certificate]:
    try:
        yield from certificates_at(program.name, expiries_named_in(program.file))
    except SettingsError:
        return
