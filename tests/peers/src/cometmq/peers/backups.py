# SPDX-License-Identifier: Apache-2.0
"""Copies the folder of a running broker with the scripts of the guides."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.peers.errors import PeerError
from cometmq.peers.paths import ROOT

GUIDES: Final = ROOT / "docs" / "guides"
POD: Final = "orders-1"
"""The pod that the guide for Kubernetes copies."""
ATTEMPTS_MAX: Final = 20
CHANGED_MEANWHILE: Final = ("No such file", "replaced while being copied", "File removed")


def copy_in_order(store: Path, to: Path) -> None:
    """Run the guide's script; the guide says to repeat it if a file was deleted or replaced."""
    text = _script("backup.md").replace("/srv/cometmq/store", str(store))
    text = text.replace("/backup/store", str(to))
    _repeat(text, clear=lambda: shutil.rmtree(to))


def stream_in_order(store: Path, to: Path) -> None:
    """Run the script for pods without Kubernetes, and unpack the archive as the guide does."""
    archive = to.with_suffix(".tar")
    text = archive_script(POD, archive).replace(f"kubectl exec {POD} -- ", "")
    _repeat(text.replace("/var/lib/cometmq", str(store)), clear=archive.unlink)
    to.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(to)], check=True)


def archive_script(pod: str, archive: Path) -> str:
    """Return the script that copies the files of a pod into an archive."""
    text = _script("disaster-recovery.md")
    return text.replace(f"exec {POD} ", f"exec {pod} ").replace("orders.tar", str(archive))


def _script(guide: str) -> str:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    (script,) = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return str(script)


def _repeat(script: str, clear: Callable[[], object]) -> None:
    """Run a script until it prints no error; `clear` deletes an incomplete copy."""
    errors = ""
    for _ in range(ATTEMPTS_MAX):
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        if done.returncode == 0 and not done.stderr:
            return
        errors = done.stderr
        if not any(it in errors for it in CHANGED_MEANWHILE):
            break
        clear()
    raise PeerError(f"the copy failed: {errors}")
