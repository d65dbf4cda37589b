# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana dashboards; with `--check`, exit with status 1 if a file is out of date."""

import json
import sys
from pathlib import Path
from typing import Final

from monitoring.boards import BOARDS
from monitoring.panels import as_json

FOLDER: Final = Path(__file__).parents[1] / "libs/cli/src/cometmq/cli/templates/dashboards"


def files() -> dict[Path, str]:
    """Return the content of each dashboard's file."""
    return {
        FOLDER / f"{board.uid}.json": json.dumps(as_json(board), indent=1) + "\n"
        for board in BOARDS
    }


def main() -> int:
    """Write or check all files; return the exit status."""
    wanted = files()
    known = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    if "--check" in sys.argv[1:]:
        stale = sorted(path for path in {*wanted, *known} if wanted.get(path) != known.get(path))
        for path in stale:
            print(f"out of date (run `make dashboards`): {path}")
        return 1 if stale else 0
    for path in known.keys() - wanted.keys():
        path.unlink()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
