# SPDX-License-Identifier: Apache-2.0
"""The table of programs, from which the commands, reference pages and tests of each are derived."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import msgspec


class Program(NamedTuple):
    """A program with settings of its own."""

    name: str
    """Its command: `cometmq NAME`."""
    classes: str
    """The first part of its class names: `Broker` for `BrokerApp` and `BrokerSettings`."""
    help: str = ""
    """The help line of its command; empty if only its image starts it."""
    own_keys: frozenset[str] = frozenset()
    """Keys that only this program's settings file has."""

    @property
    def module(self) -> str:
        """Return the name of its package."""
        return f"cometmq.{self.name.replace('-', '_')}"

    @property
    def prefix(self) -> str:
        """Return the prefix of the environment variables that set its settings."""
        return f"COMETMQ_{self.name.replace('-', '_').upper()}"

    def settings_type(self) -> "type[msgspec.Struct]":
        """Import and return the struct of its settings."""
        found: type[msgspec.Struct] = getattr(
            import_module(f"{self.module}.settings"), f"{self.classes}Settings"
        )
        return found

    def app_type(self) -> Any:
        """Import and return its application class; see `program.Build` and `program.App`.

        Its `check_settings` does the part of `check` that `config check` does, too: it tries no
        port, and locks no folder.
        """
        return getattr(import_module(f"{self.module}.app"), f"{self.classes}App")


PROGRAMS: Final = {
    it.name: it
    for it in (
        Program(
            "namesrv",
            "Namesrv",
            "Run a name server.",
            frozenset({"kvConfigPath", "configStorePath", "orderMessageEnable", "clusterTest"}),
        ),
        Program(
            "broker",
            "Broker",
            "Run a broker.",
            frozenset(
                {"brokerName", "brokerClusterName", "brokerId", "brokerRole", "storePathRootDir"}
            ),
        ),
        Program(
            "txn-checker",
            "TxnChecker",
            "Run a transaction check service.",
            frozenset({"pollNameServerInterval", "questionsPerSecond"}),
        ),
        Program(
            "elector", "Elector", "Run an elector, which makes sure that a group has a master."
        ),
        Program(
            "exporter",
            "Exporter",
            "Run an exporter, which shows statistics of consumers.",
            frozenset({"collectInterval", "groupCountEnable"}),
        ),
        Program(
            "console",
            "Console",
            "Run the console: pages for operators.",
            frozenset({"historyInterval", "historyDays", "anonymousRole", "oidcIssuer"}),
        ),
        Program("operator", "Operator"),
    )
}

COMMANDS: Final = {name: it for name, it in PROGRAMS.items() if it.help}
"""The programs that users start by `cometmq NAME`, by name."""
