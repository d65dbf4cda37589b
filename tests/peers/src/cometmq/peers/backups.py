# SPDX-License-Identifier: Apache-2.0
"""Copies the folder of a running broker with the script of docs/guides/backup.md."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cometmq.peers.paths import ROOT
from cometmq.peers.processes import PeerError

GUIDE: Final = ROOT / "docs" / "guides" / "backup.md"
ATTEMPTS_MAX: Final = 20
CHANGED_MEANWHILE: Final = ("No such file", "replaced while being copied")


def copy_in_order(store: Path, to: Path) -> None:
    """Run the guide's script; the guide says to repeat it if a file was deleted or replaced."""
    (text,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = text.replace("/srv/cometmq/store", str(store)).replace("/backup/store", str(to))
    errors = ""
    for _ in range(ATTEMPTS_MAX):
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        errors = done.stderr
        if not any(it in errors for it in CHANGED_MEANWHILE):
            break
        shutil.rmtree(to)
    raise PeerError(f"the copy failed: {errors}")
