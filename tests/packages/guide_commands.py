# SPDX-License-Identifier: Apache-2.0
"""The commands of a guide, as a script for `bash`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page in their order, each with the output that the page shows.

    A line that begins with `# ` starts a command; a here document goes on until its `EOF`.
    """
    text = (ROOT / "docs/guides" / name).read_text(encoding="utf-8")
    found: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(text):
        is_open = False
        for line in block.splitlines():
            if is_open:
                command, shown = found[-1]
                found[-1] = f"{command}\n{line}", shown
                is_open = line != "EOF"
            elif line.startswith("# "):
                found.append((line[2:], []))
                is_open = "<<EOF" in line
            else:
                found[-1][1].append(line)
    return found


def script(name: str) -> str:
    """Return a script that runs a page's commands, stops at the first failure, and compares their
    output with what the page shows.
    """
    lines = ["set -e"]
    for command, shown in commands(name):
        lines.append(f"echo {_quoted(command.splitlines()[0])} >&2")
        if command.startswith("! "):  # the failure of such a command would not end the script
            lines.append(f"if {command[2:]}; then exit 9; fi")
        elif shown:
            wanted = _quoted("\n".join(shown))
            lines.append(f"shown=$({command})")
            lines.append(f'[ "$shown" = {wanted} ] || {{ echo "$shown"; exit 8; }}')
        else:
            lines.append(command)
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
