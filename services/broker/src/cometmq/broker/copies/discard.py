# SPDX-License-Identifier: Apache-2.0
"""Discard the store of a slave: move its files aside after the broker has closed them.

The state file is moved first, and durably. A store without a state file counts as a new copy, so a
crash at any later point cannot make the broker group trust a store that has lost its messages (R2).
"""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.broker.settings import BrokerSettings
from cometmq.ha.role import Role
from cometmq.ha.state import STATE_FILE
from cometmq.remoting.log import Log
from cometmq.runtime.files import sync_folder
from cometmq.store.layout import FOREIGN

ASIDE: Final = "discarded-"
KEPT: Final = frozenset({"config", "lock"})
TABLES: Final = "config"
ANSWER_MS: Final = 200
"""Delay between the order and the stop of the broker, so that the answer can be sent."""


def stop_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Discard:
    def __init__(self, request_stop: Callable[[], None] = stop_process) -> None:
        self.request_stop = request_stop
        self._is_wanted = False

    def order(self) -> None:
        """Stop the broker once the order is answered."""
        self._is_wanted = True
        asyncio.get_running_loop().call_later(ANSWER_MS / 1000, self.request_stop)

    def check(self, role: Role, log: Log) -> None:
        """Withdraw the order if the broker is no longer a slave; also before a hand-over."""
        if self._is_wanted and role is not Role.SLAVE:
            self._is_wanted = False
            log.warning("store.kept", role=str(role))

    def finish(self, settings: BrokerSettings, role: Role, now_ms: int, log: Log) -> None:
        """Move the closed store aside if that was ordered and this is still a slave; blocks."""
        self.check(role, log)
        if self._is_wanted:
            log.warning("store.discarded", moved_to=str(move_aside(settings, now_ms)))


def why_not(settings: BrokerSettings) -> str:
    log = settings.store_path_commit_log
    if log and Path(log).expanduser().parent != Path(settings.store_path_root_dir).expanduser():
        return f"the commit log is in a folder of its own (storePathCommitLog={log})"
    return ""


def move_aside(settings: BrokerSettings, now_ms: int) -> Path:
    """Move the files of a closed store into a new subfolder, but no users' files in `config`;
    blocks.
    """
    root = Path(settings.store_path_root_dir).expanduser()
    aside = root / f"{ASIDE}{now_ms}"
    (aside / TABLES).mkdir(parents=True)
    if (root / STATE_FILE).exists():
        (root / STATE_FILE).rename(aside / STATE_FILE)
    sync_folder(aside)
    sync_folder(root)
    for path in root.iterdir():
        if path.name not in KEPT and not path.name.startswith((ASIDE, *FOREIGN)):
            path.rename(aside / path.name)
    for pattern in ("*.json*", "journal*"):
        for path in (root / TABLES).glob(pattern):
            path.rename(aside / TABLES / path.name)
    return aside
