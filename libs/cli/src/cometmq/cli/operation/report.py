# SPDX-License-Identifier: Apache-2.0
"""`cometmq report`: the state of a cluster on one page, for a mail or a ticket."""

from pathlib import Path
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, Yes, confirm, run, wrong_usage
from cometmq.cli.input import has_content
from cometmq.cli.operation.ages import Add, with_ages
from cometmq.cli.operation.doctor import Expected
from cometmq.cli.operation.evidence import collect, read_bundle
from cometmq.cli.operation.report_parts import GENERATOR, Report, html, report_of
from cometmq.cli.operation.top_views import Screen, rows_of
from cometmq.cli.output import STDOUT, AsJson, print_facts, print_json, print_rows
from cometmq.cli.say import say
from cometmq.cli.verbs.pages import is_page_of, write_page
from cometmq.client.admin import AdminClient
from cometmq.insight.model import Snapshot

TOP: Final = 10
TOP_MAX: Final = 10_000

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def report(  # one parameter per option
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write an HTML page to this file; - prints it."),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=TOP_MAX, help="Rows of each table.")
    ] = TOP,
    expected: Expected = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--from", help="Report on an archive of debug bundle instead of a cluster."),
    ] = None,
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
    if out is not None and str(out) != STDOUT:
        run(_confirmed(out, is_confirmed=yes))
    evidence = (
        run(collect(namesrv, expected or (), has_rates=True, add=_with_ages(top)))
        if bundle is None
        else (read_bundle(bundle))
    )
    found = report_of(evidence, namesrv, top)
    if as_json:
        print_json(found.as_object())
    elif out is None:
        _print(found)
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


async def _confirmed(out: Path, *, is_confirmed: bool) -> None:
    if has_content(out) and not is_page_of(GENERATOR, out):
        await confirm(f"Overwrite {out}?", is_confirmed=is_confirmed)


def _print(found: Report) -> None:
    say(found.head)
    say(found.verdict)
    for part in found.parts:
        say()
        if part.rows:
            print_rows(part.columns, part.rows, as_json=False, title=part.title)
        else:
            say(f"{part.title}: {part.empty}")
        if part.left_out:
            say(f"{part.left_out:,} more: --top")
