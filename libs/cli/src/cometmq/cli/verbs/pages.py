# SPDX-License-Identifier: Apache-2.0
"""Reports: tables of the state of a cluster, as text, JSON, or a page that loads nothing."""

import os
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from shlex import quote as quote_word
from typing import Any, Final

import msgspec

from cometmq.cli.connecting import confirm
from cometmq.cli.input import has_content
from cometmq.cli.output import STDOUT, Cell, as_objects, print_rows
from cometmq.cli.say import say
from cometmq.client.errors import ClientError
from cometmq.insight.judge import Status
from cometmq.insight.times import shown
from cometmq.remoting.visible import visible

HEAD_BYTES: Final = 8_192
"""A page's mark is within its first bytes."""
MARK: Final = '<meta name="generator" content="cometmq">'
"""What distinguishes our pages, which may be replaced, from other files."""
_SEVERITIES: Final = {"critical": "critical", "warning": "warn", "info": "info"} | {
    it.word: it.severity for it in Status
}
_MARKS: Final = {"critical": "▲▲", "error": "▲", "warn": "◆", "info": "○", "ok": "✓"}
# Text and background of each severity have a contrast of 4.5 or more in both schemes; the word
# carries the meaning where colours do not.
STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --line: #d0d7de;
  --quiet: #57606a; --critical: #a40e26; --error: #953800; --warn: #7d4e00; --info: #0550ae;
  --ok: #116329; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #30363d;
  --quiet: #9198a1; --critical: #ff8182; --error: #ffa657; --warn: #e3b341; --info: #79c0ff;
  --ok: #56d364; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
.quiet { color: var(--quiet); }
.verdict { font-size: 1.15rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
thead th { white-space: nowrap; }
tbody th { font-weight: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.status { font-weight: 600; white-space: nowrap; }
.critical { color: var(--critical); } .error { color: var(--error); }
.warn { color: var(--warn); } .info { color: var(--info); } .ok { color: var(--ok); }
summary { cursor: pointer; }
code { font-size: .9em; user-select: all; }
@media (max-width: 760px) {
  table, tbody, tr, td, tbody th { display: block; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, tbody th { padding: 0; border: 0; }
  td[data-t] { display: grid; grid-template-columns: 8.5rem minmax(0, 1fr); text-align: left; }
  td[data-t]::before { content: attr(data-t); color: var(--quiet); }
}
"""
"""On a narrow screen, a row is a block of lines: the titles of its cells, and their values."""


class Part(msgspec.Struct, frozen=True):
    """A table of the report, with its title."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str
    """The sentence that the report shows instead of an empty table."""
    left_out: int = 0
    """Rows that are not shown."""


class Report(msgspec.Struct, frozen=True):
    """The state of a cluster at one moment."""

    taken_ms: int
    namesrv: str
    host: str
    program: str
    verdict: str
    parts: Sequence[Part]
    title: str = "Cluster report"
    notes: Sequence[str] = ()
    """What the reader must know before the tables."""

    @property
    def head(self) -> str:
        """Where and when the figures come from."""
        return f"{self.namesrv}, {shown(self.taken_ms)}, seen from {self.host} with {self.program}"

    def as_object(self) -> dict[str, Any]:
        """Return the report for JSON."""
        parts = {
            it.name: {
                "rows": as_objects(it.columns, it.rows),
                "left_out": it.left_out,
                **({} if it.rows else {"note": it.empty}),
            }
            for it in self.parts
        }
        return {
            "taken": shown(self.taken_ms), "namesrv": self.namesrv, "host": self.host,
            "program": self.program, "verdict": self.verdict, **parts,
        }  # fmt: skip


def html(report: Report) -> str:
    """Return the page; nothing in it can run or load anything."""
    reach = f"Commands reach this cluster with <code>-n {_text(quote_word(report.namesrv))}</code>"
    body = "\n".join(
        [
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="quiet">{_text(report.head)}. {reach}</p>',
            f'<p class="verdict">{_text(report.verdict)}</p>',
            *(f'<p class="error">{_text(note)}</p>' for note in report.notes),
            *map(_section, report.parts),
        ]
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(f"{report.title}: {report.namesrv}")}</title>
{MARK}
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _section(part: Part) -> str:
    title = f"<h2>{escape(part.title)}</h2>"
    if not part.rows:
        return f'{title}\n<p class="quiet">{_text(part.empty)}</p>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.columns)
    rows = "\n".join(f"<tr>{''.join(map(_cell, part.columns, row))}</tr>" for row in part.rows)
    more = f'\n<p class="quiet">{part.left_out:,} more.</p>' if part.left_out else ""
    return (
        f'{title}\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>{more}"
    )


def _cell(title: str, cell: Cell) -> str:
    begin = f'data-t="{escape(title)}">'
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f'<td class="number" {begin}{cell:,}</td>'
    text = "-" if cell is None else str(cell)
    name = _SEVERITIES.get(text, "") if title in {"Level", "Status"} else ""
    if name:
        sign = f'<span aria-hidden="true">{_MARKS[name]}</span>'
        return f'<td class="status {name}">{sign} {text}</td>'
    if text.startswith("cometmq "):
        return f"<td {begin}<code>{_text(text)}</code></td>"
    return f"<td {begin}{_text(text)}</td>"


def _text(text: str) -> str:
    return escape(visible(text))


def print_report(found: Report) -> None:
    """Print the tables of a report for people."""
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


async def confirm_page(file: Path, *, is_confirmed: bool) -> None:
    """Ask before a file is overwritten that is no page of ours."""
    if str(file) != STDOUT and has_content(file) and not _is_ours(file):
        await confirm(f"Overwrite {file}?", is_confirmed=is_confirmed)


def _is_ours(file: Path) -> bool:
    try:
        with file.open("rb") as found:
            return MARK.encode() in found.read(HEAD_BYTES)
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror or error}") from error


def write_page(text: str, file: Path) -> None:
    """Replace a regular file atomically; write to a device, a pipe or standard output (`-`)
    directly.
    """
    if str(file) == STDOUT:
        say(text, nl=False)
        return
    # A link stays; only the file that it leads to is replaced.
    target = Path(os.path.realpath(file))
    part = target.with_name(f".{target.name}.part")
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        with suppress(OSError):  # such as a file in place of its folder
            part.unlink(missing_ok=True)
        raise ClientError(f"{file} cannot be written: {error.strerror or error}") from error
