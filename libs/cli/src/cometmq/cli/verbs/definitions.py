# SPDX-License-Identifier: Apache-2.0
"""`cometmq definitions`: write topics, groups and rights to a file, and take them from one."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from cometmq.cli.access import ACCESS
from cometmq.cli.admin import CommandAdmin
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
from cometmq.cli.meter import live
from cometmq.cli.output import (
    STDOUT,
    AsJson,
    Cell,
    as_objects,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.say import say
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.definitions.form import BYTES_MAX, decode, encode
from cometmq.insight.definitions.importing import (
    Imported,
    carry_out,
    check_secrets,
    is_whole,
    read_secrets,
    summary,
)
from cometmq.insight.definitions.planning import Fate, Plan, plan
from cometmq.insight.definitions.state import State, read_state
from cometmq.insight.words import counted

T = TypeVar("T")

COLUMNS: Final = ("Kind", "Name", "At", "Becomes", "Difference")
OUTCOME_COLUMNS: Final = ("Kind", "Name", "At", "Outcome", "Reason")

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


@app.command("import")
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
    """Create and change what a file defines; leave everything else as it is, and delete nothing.

    The whole file is checked before the first change, and the differences are shown. If anything is
    refused, nothing is changed, unless --skip-refused is given. Each change has its own outcome; an
    import that a broker has interrupted can be repeated, because equal definitions are left alone.

    \b
    EXAMPLES
      cometmq definitions import cluster.json --dry-run
      cometmq definitions import cluster.json --secrets keys.txt --yes
    """
    wanted = _checked(lambda: decode(_read(file)), f"{file}: ")
    keys = {} if secrets is None else _checked(lambda: _secrets(secrets))
    imported: list[Imported] = []

    async def question(admin: CommandAdmin) -> Plan:
        state = await read_state(admin)
        found = plan(state, wanted)
        if ACCESS.get().is_dry_run:
            return found
        if found.refused and not skip_refused:
            return found
        check_secrets(found, keys)
        if not as_json and found.changes:
            _print(found)
        if found.changes:
            text = f"Make {counted(len(found.changes), 'change')}?"
            await confirm(text, is_confirmed=yes)
        async with live(lambda: f"{len(imported):,} of {len(found.changes):,} changes"):
            await carry_out(admin, state, found, keys, done=imported.append)
        return found

    try:
        found = ask(namesrv, question)
    except BaseException:
        if imported:
            print_notes([f"interrupted: {summary(imported)}; repeat the command for the rest"])
        raise
    _report(found, imported, is_blocked=bool(found.refused) and not skip_refused, as_json=as_json)


def _report(found: Plan, imported: list[Imported], *, is_blocked: bool, as_json: bool) -> None:
    """Print what was done, or what would be, and exit with 1 if anything is left."""
    is_dry = ACCESS.get().is_dry_run
    outcomes: list[list[Cell]] = [
        [it.row.kind, it.row.name, it.row.place, it.outcome, it.reason] for it in imported
    ]
    if as_json:
        print_json({
            "counts": found.counts,
            "untouched": found.untouched,
            "rows": as_objects(COLUMNS, _rows(found, with_equal=True)),
            "changed": bool(imported),
            "outcomes": as_objects(OUTCOME_COLUMNS, outcomes),
        })  # fmt: skip
    elif is_dry or is_blocked or not found.changes:
        _print(found)
    failed = [row for row in outcomes if row[3] != "done"]
    if failed and not as_json:
        print_rows(OUTCOME_COLUMNS, failed, as_json=False)
    if imported:
        print_notes([summary(imported)])
    elif is_blocked:
        hint = "" if is_dry else ": nothing was changed"
        count = counted(len(found.refused), "definition")
        print_notes([f"{count} refused{hint}; mend the file, or give --skip-refused"])
    elif is_dry and found.lacking:
        print_notes([f"secret keys are needed (--secrets) for {', '.join(found.lacking)}"])
    if is_blocked or not is_whole(imported):
        raise typer.Exit(1)


def _print(found: Plan) -> None:
    print_rows(COLUMNS, _rows(found), as_json=False, title=found.sentence)


def _rows(found: Plan, *, with_equal: bool = False) -> list[list[Cell]]:
    return [
        [row.kind, row.name, row.place, row.fate, row.text]
        for row in found.rows
        if with_equal or row.fate is not Fate.EQUAL
    ]


def _checked(read: Callable[[], T], place: str = "") -> T:
    try:
        return read()
    except InvalidArgument as error:
        raise wrong_usage(f"{place}{error}") from error


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror or error}") from error


def _secrets(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ClientError(f"{file} cannot be read: {error}") from error
    return read_secrets(lines, str(file))
