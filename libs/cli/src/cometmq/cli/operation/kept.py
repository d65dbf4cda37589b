# SPDX-License-Identifier: Apache-2.0
"""`cometmq audit`: print the changes that a console or `cometmq mcp` has recorded."""

from pathlib import Path
from typing import Annotated, Final

from cometmq.cli.connecting import run
from cometmq.cli.lazy import App
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import AsJson, Cell, as_objects, print_json, print_rows
from cometmq.cli.watching import watched
from cometmq.client.errors import ClientError
from cometmq.console.audit import Audit, Change, changes_of
from cometmq.insight.times import shown
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock

AUDIT_COLUMNS: Final = ("At", "User", "By", "From", "Action", "Subject", "Outcome", "Text")
ENTRIES_PER_CHANGE: Final = 2
FACTOR: Final = 50
"""A search reads at most this many changes for each one that may be shown."""

Folder = Annotated[Path, arg("The console's storePathRootDir.", exists=True, file_okay=False)]
Find = Annotated[str, opt("--find", "Only rows with all these words, in any case.")]

app = App()


@app.command("audit")
@watched
def audit(
    folder: Folder,
    *,
    find: Find = "",
    count_max: Annotated[int, opt("--max", "Changes.", min=1, max=10_000)] = 100,
    as_json: AsJson = False,
) -> None:
    """List the changes in an audit log, the newest first.

    The folder is that of a console, or of `cometmq mcp` (~/.local/state/cometmq/mcp). In JSON,
    each change has what was there before and after it.

    \b
    EXAMPLES
      cometmq audit /var/lib/cometmq-console --max 20
      cometmq audit /var/lib/cometmq-console --find 'topic.delete orders'
    """
    if not (folder / "audit.log").exists():
        raise ClientError(f"{folder} has no audit.log: no change was made there")
    words = find.casefold().split()
    factor = FACTOR if words else 1
    changes = [
        it
        for it in run(_changes(folder, count_max * ENTRIES_PER_CHANGE * factor))
        if all(word in " ".join(map(str, _cells(it))).casefold() for word in words)
    ][:count_max]
    if as_json:
        rows = as_objects(AUDIT_COLUMNS, [_cells(it) for it in changes])
        print_json([
            {**row, "before": it.begun.before, "after": it.begun.after}
            for row, it in zip(rows, changes, strict=True)
        ])  # fmt: skip
    else:
        print_rows(
            AUDIT_COLUMNS, [_cells(it) for it in changes], as_json=False, empty="no change matches"
        )


async def _changes(folder: Path, entries_max: int) -> list[Change]:
    log = Audit(folder, mib_max=1, clock=SystemClock(), log=NO_LOG)
    try:
        return changes_of(await log.newest(entries_max))
    finally:
        log.close()


def _cells(change: Change) -> list[Cell]:
    it = change.begun
    return [
        shown(it.at_ms), it.user, it.how, it.address, it.action, it.subject, change.outcome,
        change.text,
    ]  # fmt: skip
