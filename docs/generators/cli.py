# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/cli.md and mqadmin.md: the help page of every `cometmq` command."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from cometmq.cli import mqadmin
from cometmq.cli.lazy import CommandInfo, load_command
from cometmq.cli.main import COMMANDS, app

from .markdown import notice, table

WIDTH: Final = 92

INTRODUCTION: Final = """\
`cometmq COMMAND --help` prints the same text. The commands of RocketMQ's mqadmin are in
[mqadmin.md](mqadmin.md).

{statuses}

Options of `cometmq` itself may precede or follow the command, as in
`cometmq --credentials tools.yml topic list`:

```text
{options}
```
"""

DONE: Final = """\
also when there is nothing to show; also when `produce` has stored messages without the confirmation
of a slave or the disk: it prints the status, such as SLAVE_NOT_AVAILABLE, and what it means"""
FAILED: Final = """\
the cluster has no topic, group, broker, cluster, queue or message of this name; a server is down,
hangs or refuses the request; a confirmation was declined; the output cannot be written;
`consume --max` was not reached in time; `txn verify` found differences"""
WRONG: Final = """\
an unknown command or option; a value, name or time that is malformed or out of range; options that
exclude or require each other; an input file that cannot be read; `--yes` is missing and there is
no terminal to prompt on; a program that cannot start because of its settings, a port or a folder"""
STATUSES: Final = (
    ("0", "done", DONE.replace("\n", " ")),
    ("1", "failed", FAILED.replace("\n", " ")),
    ("2", "wrong usage, nothing was done", WRONG.replace("\n", " ")),
    ("3, 4, 5", "`store verify`", "the store is in use, needs recovery, is damaged"),
    ("130", "interrupted", "Ctrl-C, SIGTERM, or the terminal was closed"),
    ("141", "no reader", "`head` or another reader of the output has exited (SIGPIPE)"),
)


MQADMIN: Final = """\
RocketMQ's `mqadmin COMMAND OPTIONS` becomes `cometmq COMMAND OPTIONS`, with the same names, short
and long options, and columns. `--json` prints output in a stable format for scripts; a command that
fails prints a one-line reason and exits with a nonzero status. Commands without a counterpart in
mqadmin are in [cli.md](cli.md).
"""


def page() -> str:
    """Return the reference page of CometMQ's own commands."""
    own = {name: info for name, info in COMMANDS.items() if name not in mqadmin.COMMANDS}
    statuses = "\n".join(table(("exit status", "meaning", "cases"), STATUSES))
    text = INTRODUCTION.format(options=_options(), statuses=statuses)
    return _page("Command line", "cli", text, own)


def _options() -> str:
    """Return the options of `cometmq` itself, as its help page lists them."""
    text = _context(typer.main.get_command(app), "cometmq").get_help()
    return text[text.index("Options:") : text.index("Programs:")].rstrip()


def mqadmin_page() -> str:
    """Return the reference page of the commands that mqadmin also has."""
    return _page("mqadmin's commands", "mqadmin", MQADMIN, mqadmin.COMMANDS)


def _page(title: str, name: str, introduction: str, commands: Mapping[str, CommandInfo]) -> str:
    lines = [f"# {title}", "", notice(name), "", *introduction.split("\n")]
    rows = ((f"[{name}](#cometmq-{name.lower()})", info.help) for name, info in commands.items())
    lines += table(("command", "what it does"), rows)
    for command, info in commands.items():
        lines += _section(load_command(command, info), f"cometmq {command}")
    return "\n".join(lines) + "\n"


def _section(command: Any, path: str) -> Iterator[str]:
    """Yield the lines of a command's help page, followed by its subcommands' pages."""
    command.rich_markup_mode = None  # plain text on every terminal
    context = _context(command, path)
    level = "#" * (path.count(" ") + 1)
    yield from ("", f"{level} {path}", "", "```text", command.get_help(context).rstrip(), "```")
    for name, child in getattr(command, "commands", {}).items():
        yield from _section(child, f"{path} {name}")


def _context(command: Any, path: str) -> typer.Context:
    return typer.Context(
        command,
        info_name=path,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
