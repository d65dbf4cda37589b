# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/settings-*.md from the settings structs of all programs."""

import inspect
import socket
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.accepted_settings import AcceptedSettings
from cometmq.broker.copies_settings import CopiesSettings
from cometmq.broker.limit_settings import LimitSettings
from cometmq.broker.settings import BrokerSettings
from cometmq.console.settings import ConsoleSettings
from cometmq.elector.settings import ElectorSettings
from cometmq.exporter.settings import ExporterSettings
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.runtime.settings_fields import SettingsField, fields_of
from cometmq.store.settings import StoreSettings
from cometmq.txn_checker.settings import TxnCheckerSettings

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
PROGRAMS: Final = (
    BrokerSettings, NamesrvSettings, TxnCheckerSettings, ElectorSettings, ExporterSettings,
    ConsoleSettings,
)  # fmt: skip
CHANGEABLE: Final = """
*Changeable*: tools may change the setting while the program runs ({tool}). A change of any other
setting takes effect at the next start.
"""


def broker_page() -> str:
    """Return the page of the broker's settings, including store and ineffective settings."""
    lines = ["# Settings of the broker", "", notice("settings-broker"), ""]
    lines += _sources(
        BrokerSettings,
        program="broker",
        tool="UPDATE_BROKER_CONFIG, `mqadmin updateBrokerConfig`",
    )
    lines += _group("Broker", BrokerSettings, BrokerSettings)
    lines += _group("Limits on peers", BrokerSettings, LimitSettings)
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
    lines += table(
        ("setting", "value", "default", "why"),
        (
            (code(field.name), _expected(field), _default(field, default), field.description)
            for field in _fields(BrokerSettings, AcceptedSettings)
        ),
    )
    return "\n".join(lines) + "\n"


def namesrv_page() -> str:
    """Return the page of the name server's settings."""
    lines = ["# Settings of the name server", "", notice("settings-namesrv"), ""]
    lines += _sources(
        NamesrvSettings,
        program="namesrv",
        tool="UPDATE_NAMESRV_CONFIG, `mqadmin updateNamesrvConfig`",
    )
    lines += _group("Name server", NamesrvSettings, NamesrvSettings)
    return "\n".join(lines).rstrip("\n") + "\n"


def txn_checker_page() -> str:
    """Return the page of the txn-checker's settings."""
    lines = ["# Settings of the txn-checker", "", notice("settings-txn-checker"), ""]
    lines += _sources(TxnCheckerSettings, program="txn-checker", tool=None)
    lines += _group("Transaction check service", TxnCheckerSettings, TxnCheckerSettings)
    return "\n".join(lines).rstrip("\n") + "\n"


def elector_page() -> str:
    """Return the page of the elector's settings."""
    lines = ["# Settings of the elector", "", notice("settings-elector"), ""]
    lines += _sources(ElectorSettings, program="elector", tool=None)
    lines += _group("Elector", ElectorSettings, ElectorSettings)
    return "\n".join(lines).rstrip("\n") + "\n"


def exporter_page() -> str:
    """Return the page of the exporter's settings."""
    lines = ["# Settings of the exporter", "", notice("settings-exporter"), ""]
    lines += _sources(ExporterSettings, program="exporter", tool=None)
    lines += _group("Exporter", ExporterSettings, ExporterSettings)
    return "\n".join(lines).rstrip("\n") + "\n"


def console_page() -> str:
    """Return the page of the console's settings."""
    lines = ["# Settings of the console", "", notice("settings-console"), ""]
    lines += _sources(ConsoleSettings, program="console", tool=None)
    lines += _group("Console", ConsoleSettings, ConsoleSettings)
    return "\n".join(lines).rstrip("\n") + "\n"


def _expected(field: SettingsField) -> str:
    """Return what a value may be, with a pattern as code: Markdown would read its brackets."""
    words, is_pattern, pattern = field.expected.partition("text matching ")
    return f"{is_pattern}{code(pattern)}" if is_pattern else words


def all_fields() -> list[SettingsField]:
    """Return the settings of all programs."""
    return [field for settings in PROGRAMS for field in fields_of(settings).values()]


def _sources(settings: type[msgspec.Struct], *, program: str, tool: str | None) -> list[str]:
    """Describe where settings come from; the command `tool` changes some of them at run time."""
    fields = fields_of(settings)
    field = fields.get("listenPort") or fields["adminHttpPort"]
    text = SOURCES.format(
        program=program,
        name=field.name,
        option=f"{field.option} VALUE",
        variable=field.variables(f"COMETMQ_{program.upper().replace('-', '_')}")[-1],
    )
    if tool is not None:
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
