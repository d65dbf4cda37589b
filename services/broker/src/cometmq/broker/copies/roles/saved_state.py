# SPDX-License-Identifier: Apache-2.0
"""The state file of this member (`cometmq.ha.state`): its promise and what it has
seen of the record.
"""

from functools import partial

from cometmq.ha.state import State, StateFile
from cometmq.runtime.worker import Worker


class SavedState:
    def __init__(self, state: State, file: StateFile, worker: Worker) -> None:
        """`state` is the saved result of `cometmq.ha.state.started`; `worker` writes the file."""
        self.state = state
        self._file = file
        self._worker = worker

    async def save(self, state: State) -> None:
        """Save a state unless it is saved already; raise OSError if that fails."""
        if state != self.state:
            await self.repair(state)

    async def repair(self, state: State) -> None:
        """Save a state, even if it equals the last saved one; raise OSError if that fails."""
        await self._worker.submit(partial(self._file.save, state))
        self.state = state
