# SPDX-License-Identifier: Apache-2.0
"""Pages for a browser or a mail: one file without scripts or external resources."""

import os
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

from cometmq.cli.output import STDOUT
from cometmq.cli.say import say
from cometmq.client.errors import ClientError

HEAD_BYTES: Final = 8_192
"""A page's mark is within its first bytes."""
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


def page(title: str, generator: str, body: str) -> str:
    """Return a page with a body of HTML; nothing in it can run or load anything."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
{mark(generator)}
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def mark(generator: str) -> str:
    """Return what distinguishes the pages of a command, which may be replaced, from other files."""
    return f'<meta name="generator" content="{generator}">'


def is_page_of(generator: str, file: Path) -> bool:
    """Return whether a file is a page that this command wrote earlier."""
    try:
        with file.open("rb") as found:
            return mark(generator).encode() in found.read(HEAD_BYTES)
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
