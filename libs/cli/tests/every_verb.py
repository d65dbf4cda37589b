# SPDX-License-Identifier: Apache-2.0
"""Every verb of the command line, read from its own table, with words that it accepts."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS, PROGRAMS
from cometmq.cli.mqadmin import COMMANDS as MQADMIN

WORDS: Final[Mapping[str, str]] = {
    "before": "end", "timestamp": "0", "message_id": 32 * "A", "message_ids": 32 * "A",
    "broker": "127.0.0.1:1", "destination": "Other", "perm": "6", "transaction": "broker-a:1",
    "addresses": "10.0.0.1", "cluster": "DefaultCluster", "client_id": "10.0.0.1@1",
}  # fmt: skip
"""Values of required parameters by name; others are `Name`, `1` or a folder."""
MORE: Final[Mapping[str, str]] = {
    "produce": "body --timeout 1",
    "request": "body",
    "reply": "--echo",
    "consume": "--timeout 5",
    "message trace": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "message show": "-t Name",
    "txn resolve": "--commit",
    "topic alter": "--perm r",
    "group alter": "--retries 1",
    "group reset": "--to first",
    "group seek": "--to-file {folder}/seek.json",
    "backup": "--all",
}
"""What a verb needs beside its required parameters to reach the cluster."""


_KINDS: Final = {
    "Path": "path", "Int": "number", "Float": "number", "Choice": "choice", "Bool": "switch",
}  # fmt: skip


class Verb(NamedTuple):
    """A verb without verbs below it."""

    path: tuple[str, ...]
    command: Any

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def is_program(self) -> bool:
        return COMMANDS[self.path[0]].panel == PROGRAMS

    @property
    def exit_usage(self) -> int:
        return COMMANDS[self.path[0]].exit_usage

    @property
    def asks_a_cluster(self) -> bool:
        return not self.is_program and any(it.name == "namesrv" for it in self.command.params)

    def words(self, given: Mapping[str, str], folder: Path) -> list[str]:
        """Return the verb with its required parameters; `given` has values by name or by type."""
        found = list(self.path)
        for param in self.command.params:
            if param.required:
                value = given.get(str(param.name)) or _value(param, given, folder)
                found += [value] if param.param_type_name == "argument" else [param.opts[0], value]
        found += MORE.get(self.name, "").format(folder=folder).split()
        options = {opt: it.name for it in self.command.params for opt in it.opts}
        found += ["--yes"] if "--yes" in options else []
        if (
            self.path[0] in MQADMIN
            and options.get("-c") == "cluster"
            and not {"-b", "-c"} & {*found}
        ):
            found += ["-c", given.get("cluster", "DefaultCluster")]
        return found


@cache
def verbs() -> list[Verb]:
    """Return all verbs."""
    return [
        it for name, info in COMMANDS.items() for it in _below((name,), load_command(name, info))
    ]


def _below(path: tuple[str, ...], command: Any) -> Iterator[Verb]:
    children = getattr(command, "commands", {})
    if not children:
        yield Verb(path, command)
    for name, child in children.items():
        yield from _below((*path, name), child)


def kind_of(param: Any) -> str:
    """Return `number`, `path`, `choice`, `switch` or `text`."""
    kinds = {
        "Path": "path",
        "Int": "number",
        "Float": "number",
        "Choice": "choice",
        "Bool": "switch",
    }
    name = type(getattr(param.type, "_bounded", param.type)).__name__
    return next((kind for word, kind in kinds.items() if word in name), "text")


def _value(param: Any, given: Mapping[str, str], folder: Path) -> str:
    kind = kind_of(param)
    if kind == "choice":
        return str(param.type.choices[0])
    usual = {"number": "1", "path": str(folder), "text": "Name"}
    word = WORDS.get(str(param.name), "")
    is_fit = word and (kind == "text" or word.isdecimal())
    return given.get(kind) or (word if is_fit else usual[kind])
