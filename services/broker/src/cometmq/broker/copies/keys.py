# SPDX-License-Identifier: Apache-2.0
"""The keys of the broker group, from the file that `groupKeyFile` names."""

import asyncio
from pathlib import Path
from typing import Final

from cometmq.broker.settings import BrokerSettings
from cometmq.ha.proof import KeyFile, Keys
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.runtime.settings import Loaded
from cometmq.runtime.worker import Worker

POLL_INTERVAL_MS: Final = 1_000
SETTING: Final = "groupKeyFile"


class MemberKeys:
    def __init__(
        self, file: KeyFile | None = None, *, worker: Worker | None = None, log: Log = NO_LOG
    ) -> None:
        self._file = file
        self._worker = worker
        self._log = log
        self._polling: asyncio.Future[bool] | None = None

    def current(self) -> Keys:
        """Return all accepted keys; this member proves itself with the first one."""
        return () if self._file is None else self._file.keys

    def poll(self) -> None:
        if self._file is not None and self._worker is not None and self._polling is None:
            self._polling = self._worker.submit(self._file.refresh)
            self._polling.add_done_callback(self._polled)

    def _polled(self, future: asyncio.Future[bool]) -> None:
        self._polling = None
        if future.cancelled():
            return
        try:
            has_changed = future.result()
        except SettingsError as error:
            self._log.error("group_key.unusable", error=str(error))
        else:
            if has_changed:
                self._log.info("group_key.reloaded", count=len(self.current()))


def open_keys(loaded: Loaded[BrokerSettings], *, worker: Worker, log: Log) -> MemberKeys:
    """Read the key file, if there is one; blocks. Raise SettingsError if it cannot be used."""
    path = loaded.value.group_key_file
    file = KeyFile(Path(path).expanduser(), loaded.label(SETTING)) if path else None
    return MemberKeys(file, worker=worker, log=log)
