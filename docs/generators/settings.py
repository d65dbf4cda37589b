# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/settings-*.md from the settings structs of all programs."""

import inspect
import socket
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings.accepted import AcceptedSettings
from cometmq.broker.settings.copies import CopiesSettings
from cometmq.broker.settings.limits import LimitSettings
from cometmq.runtime.programs import COMMANDS as PROGRAMS
from cometmq.runtime.settings.fields import SettingsField, fields_of
from cometmq.runtime.settings.foreign import foreign_of
from cometmq.store.settings import StoreSettings

from .markdown import code, notice, table

HEAD: Final = ("setting", "value", "default", "while it runs", "what it does")
SOURCES: Final = """\
A setting can come from several sources, each of which overrides the ones before it: the default,
the file given with `-c` (in RocketMQ's properties format or TOML), an environment variable, and a
command-line option. For example, `{variable}` and `{option}` set `{name}`.
`cometmq {program} --print-settings` prints each value with its source and exits. If a value is
wrong, the program prints one line with the setting, its value, its bounds and its source, and exits
with status 2. Unknown settings in a file are kept, returned to tools that ask for the
configuration, and listed once in the log (`settings.unknown`).
"""
TITLES: Final = {"namesrv": "name server"}
TOOLS: Final = {
    "broker": "UPDATE_BROKER_CONFIG, `mqadmin updateBrokerConfig`",
    "namesrv": "UPDATE_NAMESRV_CONFIG, `mqadmin updateNamesrvConfig`",
}
"""The requests and commands that change settings at run time."""
CHANGEABLE: Final = """
*Changeable*: tools may change the setting while the program runs ({tool}). A change of any other
setting takes effect at the next start.
"""


def page(program: str) -> str:
    """Return the page of a program's settings."""
    settings = PROGRAMS[program].settings_type()
    title = TITLES.get(program, program)
    lines = [f"# Settings of the {title}", "", notice(f"settings-{program}"), ""]
    lines += _sources(settings, program=program)
    lines += _group(title.capitalize(), settings, settings)
    if settings is BrokerSettings:
        lines += _more_of_broker()
    lines += _foreign(settings)
    return "\n".join(lines).rstrip("\n") + "\n"


def _more_of_broker() -> list[str]:
    """Return the sections of the structs that the broker's extends."""
    lines = _group("Limits on peers", BrokerSettings, LimitSettings)
    lines += _group("Broker group with failover", BrokerSettings, CopiesSettings)
    lines += _group("Store", BrokerSettings, StoreSettings)
    lines += [
        "## Without effect",
        "",
        _summary(AcceptedSettings),
        "Settings of the store marked *Accepted* have no effect either. All are logged as",
        "`settings.ineffective`.",
        "",
    ]
    default = BrokerSettings()
    return lines + table(
        ("setting", "value", "default", "why"),
        (
            (code(field.name), _expected(field), _default(field, default), field.description)
            for field in _fields(BrokerSettings, AcceptedSettings)
        ),
    )


def _foreign(settings: type[msgspec.Struct]) -> list[str]:
    """Return the sections of RocketMQ's keys that are no settings here."""
    foreign = foreign_of(settings)
    if not foreign.refused:
        return []
    by_reason: dict[str, list[str]] = {}
    for name, reason in foreign.harmless.items():
        by_reason.setdefault(reason, []).append(code(name))
    return [
        "",
        "## Refused keys of RocketMQ",
        "",
        "They mean safety, or who leads. With any value but these, the program does not start.",
        "",
        *table(
            ("key", "accepted", "why", "instead"),
            (
                (code(name), ", ".join(map(code, sorted(it.accepted))), it.what, it.way_out)
                for name, it in foreign.refused.items()
            ),
        ),
        "",
        "## Keys of RocketMQ without effect",
        "",
        *table(
            ("keys", "why"),
            ((", ".join(names), reason) for reason, names in by_reason.items()),
        ),
    ]


def _expected(field: SettingsField) -> str:
    """Return what a value may be, with a pattern as code: Markdown would read its brackets."""
    words, is_pattern, pattern = field.expected.partition("text matching ")
    return f"{is_pattern}{code(pattern)}" if is_pattern else words


def all_fields() -> list[SettingsField]:
    """Return the settings of all programs."""
    return [
        field
        for program in PROGRAMS.values()
        for field in fields_of(program.settings_type()).values()
    ]


def _sources(settings: type[msgspec.Struct], *, program: str) -> list[str]:
    """Describe where settings come from."""
    fields = fields_of(settings)
    field = fields.get("listenPort") or fields["adminHttpPort"]
    text = SOURCES.format(
        program=program,
        name=field.name,
        option=f"{field.option} VALUE",
        variable=field.variables(PROGRAMS[program].prefix)[-1],
    )
    if tool := TOOLS.get(program):
        text += CHANGEABLE.format(tool=tool)
    return text.split("\n")


def _group(title: str, whole: type[msgspec.Struct], group: type[msgspec.Struct]) -> list[str]:
    default = whole()
    rows = [
        (
            code(field.name),
            _expected(field),
            _default(field, default),
            "changeable" if field.is_mutable else "",
            field.description,
        )
        for field in _fields(whole, group)
    ]
    return [f"## {title}", "", _summary(group), "", *table(HEAD, rows), ""]


def _fields(whole: type[msgspec.Struct], group: type[msgspec.Struct]) -> Iterable[SettingsField]:
    own = inspect.get_annotations(group)
    return [field for field in fields_of(whole).values() if field.path[0] in own]


def _default(field: SettingsField, default: msgspec.Struct) -> str:
    """Return a default in the form used in files, with this machine's name and home replaced."""
    value = field.read(default)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return code(str(value).lower())
    if value == "":
        return "(empty)"
    if value == (socket.gethostname() or "DEFAULT_BROKER"):
        return "(the host's name)"
    text = str(value)
    if text.startswith("/") and Path(text).is_relative_to(Path.home()):
        text = f"~/{Path(text).relative_to(Path.home())}"
    return code(text)


def _summary(group: type[msgspec.Struct]) -> str:
    return (group.__doc__ or "").split("\n\n", maxsplit=1)[0].strip()
