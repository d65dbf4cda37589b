# SPDX-License-Identifier: Apache-2.0
"""`cometmq doctor` and `cometmq debug bundle`: find problems, and archive the evidence."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run
from cometmq.cli.operation.diagnosis import OK, Verdict, counts, diagnose
from cometmq.cli.operation.evidence import Evidence, collect, read_bundle, write_bundle
from cometmq.cli.output import AsJson, Cell, as_objects, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.insight.finding import Severity
from cometmq.insight.times import shown

WRONG_COLUMNS: Final = ("Level", "Area", "What", "What to do", "Runbook")
PIPED_CHARS: Final = 100
"""Width of the table in a pipe or a file, as in a mail; scripts read JSON."""
COLUMNS: Final = ("Area", "Level", "What", "What to do", "Runbook")

app = typer.Typer(add_completion=False, rich_markup_mode=None)
bundle_app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Write an archive for those who help: state, settings, findings and logs, no secrets.",
)

Expected = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="NAME", help="Broker that must be there; may be repeated."),
]


@app.command()
def doctor(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    expected: Expected = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--from", help="Examine an archive of debug bundle instead of a cluster."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine names, connections, clocks, versions, settings, disks, copies and groups.

    The exit status is 1 if something is critical or a warning; each line says what to do.

    \b
    EXAMPLES
      cometmq doctor
      cometmq doctor --from cometmq-bundle.tar.gz
    """
    evidence = run(collect(namesrv, expected or ())) if bundle is None else read_bundle(bundle)
    verdicts = diagnose(evidence)
    if as_json:
        rows: list[list[Cell]] = [list(it) for it in verdicts]
        facts: dict[str, Cell] = {
            "taken": shown(evidence.taken_ms), "host": evidence.host, "program": evidence.program,
        }  # fmt: skip
        print_json({**facts, "verdicts": as_objects(COLUMNS, rows)})
    else:
        _print(evidence, verdicts, is_old=bundle is not None)
    found = counts(verdicts)
    if found[Severity.CRITICAL] or found[Severity.WARNING]:
        raise typer.Exit(1)


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


@bundle_app.callback()
def debug() -> None:
    """Write an archive for support: state, settings, findings and logs, no secrets."""


@bundle_app.command("bundle")
def write(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; it must not exist.")
    ] = None,
    *,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="Log of a program here; its newest 4 MiB are added."),
    ] = None,
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
    evidence = run(collect(namesrv, expected or ()))
    entries = write_bundle(file, evidence, log or ())
    facts: dict[str, Cell] = {
        "file": str(file), "bytes": file.stat().st_size, "entries": entries,
    }  # fmt: skip
    print_facts(facts, as_json=as_json)
