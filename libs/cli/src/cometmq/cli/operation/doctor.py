# SPDX-License-Identifier: Apache-2.0
"""`cometmq doctor`: find problems; with --html as a page of the cluster's state, with --bundle as
an archive of the evidence. `cometmq report` and `cometmq debug bundle` are older names of these.
"""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, Yes, run, wrong_usage
from cometmq.cli.lazy import App
from cometmq.cli.operation.diagnosis import LEVELS, OK, Verdict, diagnose, report_of
from cometmq.cli.operation.evidence import (
    Add,
    Evidence,
    collect,
    read_bundle,
    with_ages,
    write_bundle,
)
from cometmq.cli.operation.top_views import Screen, rows_of
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import STDOUT, AsJson, Cell, as_objects, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.cli.verbs.pages import confirm_page, html, print_report, write_page
from cometmq.client.admin import AdminClient
from cometmq.insight.model import Snapshot
from cometmq.insight.times import shown

WRONG_COLUMNS: Final = ("Level", "Area", "What", "What to do", "Runbook")
PIPED_CHARS: Final = 100
"""Width of the table in a pipe or a file, as in a mail; scripts read JSON."""
COLUMNS: Final = ("Area", "Level", "What", "What to do", "Runbook")
TOP: Final = 10
TOP_MAX: Final = 10_000

app = App()

Expected = Annotated[
    list[str] | None, opt("--expect", "Broker that must be there; may repeat.", metavar="NAME")
]
Archive = Annotated[Path | None, opt("--from", "Examine an archive instead of a cluster.")]
Logs = Annotated[list[Path] | None, opt("--log", "Log; its newest 4 MiB are added.")]
Top = Annotated[int, opt("--top", "Rows of each table.", min=1, max=TOP_MAX)]


@app.command("doctor")
def doctor(  # noqa: PLR0913  # one parameter per option
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    expected: Expected = None,
    archive: Archive = None,
    fail_on: Annotated[
        Literal["info", "warning", "critical", "never"],
        opt("--fail-on", "Exit with 1 from this level."),
    ] = "warning",
    page: Annotated[Path | None, opt("--html", "Write a page; - prints it.")] = None,
    top: Top = TOP,
    bundle: Annotated[Path | None, opt("--bundle", "Write an archive without secrets.")] = None,
    log: Logs = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Examine connections, clocks, versions, settings, disks, copies and groups.

    \b
    EXAMPLES
      cometmq doctor --html cluster.html --fail-on never
      cometmq doctor --bundle b.tar.gz --log broker.log
    """
    if log and bundle is None:
        raise wrong_usage(f"--log {log[0]} is for an archive: give --bundle, too")
    if page is not None:
        run(confirm_page(page, is_confirmed=yes))
    evidence = _evidence(namesrv, expected, archive, None if page is None else top)
    verdicts = diagnose(evidence)
    if page is not None:
        write_page(html(report_of(evidence, namesrv, top)), page)
    if bundle is not None:
        write_bundle(bundle, evidence, log or ())
    if as_json:
        rows: list[list[Cell]] = [list(it) for it in verdicts]
        facts: dict[str, Cell] = {
            "taken": shown(evidence.taken_ms), "host": evidence.host, "program": evidence.program,
        }  # fmt: skip
        print_json({**facts, "verdicts": as_objects(COLUMNS, rows)})
    elif page is None or str(page) != STDOUT:
        _print(evidence, verdicts, is_old=archive is not None)
    levels = Counter(it.level for it in verdicts)
    if fail_on != "never" and any(levels[it] for it in LEVELS[: LEVELS.index(fail_on) + 1]):
        raise typer.Exit(1)


def _evidence(
    namesrv: str, expected: list[str] | None, archive: Path | None, top: int | None
) -> Evidence:
    """Ask a cluster or read an archive; a report of `top` rows a table needs rates and ages."""
    if archive is not None:
        return read_bundle(archive)
    if top is None:
        return run(collect(namesrv, expected or ()))
    return run(collect(namesrv, expected or (), has_rates=True, add=_with_ages(top)))


def _print(evidence: Evidence, verdicts: list[Verdict], *, is_old: bool) -> None:
    if is_old:
        moment = shown(evidence.taken_ms)
        say(f"As of {moment}, seen from {evidence.host} with {evidence.program}\n")
    wrong = [it for it in verdicts if it.level != OK]
    fine = ", ".join(it.area for it in verdicts if it.level == OK)
    if wrong:
        rows: list[list[Cell]] = [
            [it.level, it.area, it.text, it.advice or None, it.runbook or None] for it in wrong
        ]
        print_rows(WRONG_COLUMNS, rows, as_json=False, piped_chars=PIPED_CHARS)
        say()
    say(f"Nothing is wrong with: {fine or '-'}")


@app.command("debug")
def debug(  # one parameter per option
    what: Annotated[Literal["bundle"], arg("The only choice.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    out: Annotated[Path | None, opt("-o", "--out", "File to write; it must not exist.")] = None,
    *,
    log: Logs = None,
    expected: Expected = None,
    as_json: AsJson = False,
) -> None:
    """Write the evidence of doctor and logs to an archive that only you can read.

    Passwords, keys, tokens and signatures are replaced by ******; message bodies are not in it.
    Read the archive before you pass it on: names and addresses are in it.

    \b
    EXAMPLE
      cometmq debug bundle --log /var/log/cometmq/broker.log
    """
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    file = out or Path(f"cometmq-bundle-{moment}.tar.gz")
    entries = write_bundle(file, _evidence(namesrv, expected, None, None), log or ())
    facts: dict[str, Cell] = {
        "file": str(file), "bytes": file.stat().st_size, "entries": entries,
    }  # fmt: skip
    print_facts(facts, as_json=as_json)


@app.command("report")
def report(  # one parameter per option
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    out: Annotated[
        Path | None, opt("-o", "--out", "Write an HTML page to this file; - prints it.")
    ] = None,
    top: Top = TOP,
    expected: Expected = None,
    archive: Archive = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a cluster on one page, for a mail or a ticket.

    What is wrong, since when, and what to do; brokers, disks and copies; the largest lags, dead
    letters and topics; refusals; versions of clients; and what brokers did not tell. A page is one
    file without scripts that loads nothing. Names and addresses are in it, messages are not.

    \b
    EXAMPLES
      cometmq report -o cluster.html
      cometmq report --from cometmq-bundle.tar.gz --json
    """
    if as_json and out is not None:
        raise wrong_usage("--out writes a page, --json prints JSON: give one of them")
    if out is not None:
        run(confirm_page(out, is_confirmed=yes))
    evidence = _evidence(namesrv, expected, archive, top)
    found = report_of(evidence, namesrv, top)
    if as_json:
        print_json(found.as_object())
    elif out is None:
        print_report(found)
    else:
        write_page(html(found), out)
        if str(out) != STDOUT:
            print_facts({"report": str(out), "verdict": found.verdict}, as_json=False)
    if evidence.failure:
        raise typer.Exit(1)


def _with_ages(top: int) -> Add:
    """Return a function that adds the times of the newest messages of the report's topics to a
    snapshot.
    """

    async def add(admin: AdminClient, snapshot: Snapshot) -> Snapshot:
        names = [str(row[0]) for row in rows_of(snapshot, Screen("topics"))[1][:top]]
        return await with_ages(names)(admin, snapshot) if names else snapshot

    return add
