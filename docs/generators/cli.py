# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md and mqadmin.md: the help page of every command of `cometmq`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from cometmq.cli import mqadmin
from cometmq.cli.lazy import CommandInfo, load_command
from cometmq.cli.main import COMMANDS, app

from .markdown import notice, table

WIDTH: Final = 92

INTRODUCTION: Final = """\
`cometmq COMMAND --help` prints the same. Exit status: 0 done, 1 failed, 2 wrong usage, settings
or environment (with one line that says what to change), 130 interrupted. The commands of
RocketMQ's mqadmin are in [mqadmin.md](mqadmin.md).

Options of `cometmq` itself stand before or after the command, `cometmq --credentials tools.yml
topic list`; who asks may also be said by variables of the environment:

```text
{access}
```
"""


MQADMIN: Final = """\
RocketMQ's `mqadmin COMMAND OPTIONS` is `cometmq COMMAND OPTIONS`: the same names, short and long
options, and the same columns. `--json` prints what scripts can rely on; a command that fails says
why in one line and has an exit status that is not 0. Those without a counterpart in mqadmin are
in [cli.md](cli.md).
"""


def page() -> str:
    """Return the reference of our own commands."""
    own = {name: info for name, info in COMMANDS.items() if name not in mqadmin.COMMANDS}
    return _page("Command line", "cli", INTRODUCTION.format(access=_root_options()), own)


def _root_options() -> str:
    """Return the options of `cometmq` itself, as its help page shows them."""
    command = typer.main.get_command(app)
    text = command.get_help(_context(command, "cometmq"))
    return text.partition("Options:\n")[2].partition("  --version")[0].rstrip()


def mqadmin_page() -> str:
    """Return the reference of the commands that mqadmin has."""
    return _page("mqadmin's commands", "mqadmin", MQADMIN, mqadmin.COMMANDS)


def _page(title: str, name: str, introduction: str, commands: Mapping[str, CommandInfo]) -> str:
    lines = [f"# {title}", "", notice(name), "", *introduction.split("\n")]
    rows = ((f"[{name}](#cometmq-{name.lower()})", info.help) for name, info in commands.items())
    lines += table(("command", "what it does"), rows)
    for command, info in commands.items():
        lines += _section(load_command(command, info), f"cometmq {command}")
    return "\n".join(lines) + "\n"


def _section(command: Any, path: str) -> Iterator[str]:
    """Yield the help page of a command, then those of its own commands."""
    command.rich_markup_mode = None  # plain text, whatever terminal there is
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
