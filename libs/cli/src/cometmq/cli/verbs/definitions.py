# SPDX-License-Identifier: Apache-2.0
"""`cometmq definitions`: write topics, groups and rights to a file, and take them from one."""

from pathlib import Path
from typing import Annotated

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.changes import carry_out
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    DryRunOption,
    Namesrv,
    Yes,
    ask,
    confirm,
    wrong_usage,
)
from cometmq.cli.input import has_content
from cometmq.cli.lazy import App
from cometmq.cli.output import (
    STDOUT,
    AsJson,
    Cell,
    print_facts,
    print_notes,
)
from cometmq.cli.say import say
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.changes.definitions import ImportDefinitions, read_secrets
from cometmq.insight.definitions import BYTES_MAX, State, decode, encode, read_state

app = App("Export and import topics, groups and rights.")


@app.command("export")
def export(
    file: Annotated[str, typer.Argument(help="File of JSON; - is standard output.")] = STDOUT,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    yes: Yes = False,
) -> None:
    """Write all topics, groups, accounts and order configurations of a cluster as one JSON file.

    All masters must answer: a file that lacks some would look complete. Topics and groups that
    servers create themselves are left out. Secret keys are left out; only an administrator's
    account may read the others' rights.

    \b
    EXAMPLE
      cometmq definitions export cluster.json
    """

    async def question(admin: CommandAdmin) -> State:
        admin.unchanged = ""
        state = await read_state(admin)
        if file != STDOUT and has_content(Path(file)):
            await confirm(f"Overwrite {file}?", is_confirmed=yes)
        return state

    state = ask(namesrv, question)
    found = state.definitions()
    data = encode(found)
    if file == STDOUT:
        say(data, nl=False)
    else:
        try:
            Path(file).write_bytes(data)
        except OSError as error:
            raise ClientError(f"{file} cannot be written: {error.strerror or error}") from error
        facts: dict[str, Cell] = {
            "file": file,
            "topics": len(found.topics),
            "groups": len(found.groups),
            "accounts": len(found.accounts),
        }
        print_facts(facts, as_json=False)
    print_notes(f"{name} does not tell accounts: {why}" for name, why in state.silent.items())


@app.command("import", help=ImportDefinitions.__doc__)
def import_(  # one parameter per option
    file: Annotated[Path, typer.Argument(help="File of JSON.", exists=True, dir_okay=False)],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            help="File of lines ACCESS_KEY SECRET_KEY, for accounts that are created or changed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    skip_refused: Annotated[
        bool, typer.Option("--skip-refused", help="Import the rest if something is refused.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Import a file; its help is that of the change."""
    text, keys = _read(file), "" if secrets is None else _read(secrets)
    try:
        decode(text.encode())
        read_secrets(keys.splitlines(), str(secrets))
    except InvalidArgument as error:
        raise wrong_usage(f"{file}: {error}") from error
    change = ImportDefinitions(file=text, secrets=keys, skip_refused=skip_refused)
    carry_out(change, {"namesrv": namesrv, "yes": yes, "as_json": as_json})


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            return opened.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ClientError(f"{file} cannot be read: {error}") from error
