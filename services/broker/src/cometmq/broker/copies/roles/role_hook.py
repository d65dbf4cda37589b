# SPDX-License-Identifier: Apache-2.0
"""Runs the program of `roleHook` after each change of the broker's role.

The program moves what clients reach the master by, such as a virtual IP address. Safety does not
depend on it: a broker that is no longer the master refuses what only the master may do. Therefore,
role changes never wait for the program, and of several quick changes it gets only the last one.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

from cometmq.broker.role import RoleState
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log

TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
STOPPED: Final = "stopped"
"""The role that is passed to the program in its last call, when the broker stops."""
STOP_TIMEOUT_S: Final = 5.0
_OUTPUT_MAX: Final = 500


def check_hook(program: str, *, setting: str) -> None:
    if not Path(program).is_absolute():
        raise SettingsError(f"{setting}={program}: give the absolute path of a program")
    if not Path(program).is_file():
        raise SettingsError(f"{setting}={program} does not exist")
    if not os.access(program, os.X_OK):
        raise SettingsError(f"{setting}={program} cannot be executed: chmod +x {program}")


class RoleHook:
    """Runs a program with the current role, and repeats this until the program succeeds."""

    def __init__(self, program: str, broker_name: str, first: RoleState, *, log: Log) -> None:
        """The program also runs for the `first` role: an earlier one may have left the address."""
        self._program = program
        self._broker_name = broker_name
        self._wanted = first
        self._changed = asyncio.Event()
        self._log = log

    def tell(self, state: RoleState) -> None:
        self._wanted = state
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            state = self._wanted
            fault = await self._call(state.role.value, state.epoch, TIMEOUT_S)
            if fault:
                self._log.warning(
                    "role_hook.failed", program=self._program, role=state.role.value,
                    epoch=state.epoch, error=fault,
                )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if fault else None):
                    await self._changed.wait()

    async def stopped(self) -> None:
        fault = await self._call(STOPPED, self._wanted.epoch, STOP_TIMEOUT_S)
        if fault:
            self._log.warning(
                "role_hook.failed", program=self._program, role=STOPPED,
                epoch=self._wanted.epoch, error=fault,
            )  # fmt: skip

    async def _call(self, role: str, epoch: int, timeout_s: float) -> str:
        """Run the program once; return why it failed, or an empty text.

        Without `close_fds`, Python spawns; a fork would copy the page tables of a large broker.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, role, str(epoch), self._broker_name,
                stdin=asyncio.subprocess.DEVNULL, close_fds=False,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            return f"{error.strerror}"
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except TimeoutError:
            return f"it did not end within {timeout_s:g} s"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0:
            return ""
        text = output[-_OUTPUT_MAX:].decode(errors="replace").strip()
        return f"exit status {process.returncode}" + (f": {text}" if text else "")
