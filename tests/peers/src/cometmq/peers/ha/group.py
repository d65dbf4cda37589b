# SPDX-License-Identifier: Apache-2.0
"""Runs a group on loopback: a name server, brokers, two electors, and a record in a file."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import Child, PeerError

GROUP: Final = "orders"
ELECTOR_COUNT: Final = 2
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 90
SETTLE_TIMEOUT_S: Final = 240
POLL_S: Final = 0.2

Status: TypeAlias = Mapping[str, Any]
"""The output of `cometmq ha status --json`."""

_BROKER: Final = """\
brokerName={group}
brokerId={ordinal}
brokerIP1={host}
bindAddress={host}
listenPort={port}
controlPort={control}
storePathRootDir={folder}/{ordinal}
mappedFileSizeCommitLog=1048576
diskSpaceCleanForciblyRatio=100
diskSpaceWarningLevelRatio=100
namesrvAddr={namesrv}
groupRecord=file:{folder}/record/{group}.json
groupMembers={members}
minInSync={min_in_sync}
switchoverTimeoutMills=10000
"""
_ELECTOR: Final = """\
brokerName={group}
groupRecord=file:{folder}/record/{group}.json
controlMembers={members}
minInSync={min_in_sync}
"""


def broker(ordinal: int) -> str:
    return f"broker-{ordinal}"


def elector(number: int) -> str:
    return f"elector-{number}"


class BrokerGroup:
    """All processes of one group; a process is named `broker-0`, `elector-0` and so on."""

    def __init__(self, folder: Path, *, copies: int, min_in_sync: int) -> None:
        self.copies = copies
        self.namesrv = f"{HOST}:{free_port()}"
        self._folder = folder
        self._min_in_sync = min_in_sync
        self._ports = [free_broker_port() for _ in range(copies)]
        self._controls = [free_port() for _ in range(copies)]
        self._children: dict[str, Child] = {}

    def store(self, ordinal: int) -> Path:
        return self._folder / str(ordinal)

    async def start(self) -> None:
        """Start all processes, and wait until every copy is in sync."""
        for ordinal in range(self.copies):
            self._conf(broker(ordinal)).write_text(self._broker_settings(ordinal))
        for number in range(ELECTOR_COUNT):
            self._conf(elector(number)).write_text(self._elector_settings())
        await self._run("namesrv", "namesrv", "--listen-port", self.namesrv.rpartition(":")[2])
        for ordinal in range(self.copies):
            await self.start_again(broker(ordinal))
        for number in range(ELECTOR_COUNT):
            await self.start_again(elector(number))
        await self.until_complete()

    async def start_again(self, name: str) -> None:
        """Start a broker or an elector, and wait until it is ready."""
        await self._run(name, name.partition("-")[0], "-c", str(self._conf(name)))

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and wait until it has ended."""
        self._children[name].kill()

    def freeze(self, name: str) -> None:
        """Stop a process without ending it, like a suspended machine."""
        os.killpg(self._children[name].pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        os.killpg(self._children[name].pid, signal.SIGCONT)

    async def stop(self, name: str) -> None:
        """Stop a process with SIGTERM; raise PeerError unless it exits with status 0."""
        child = self._children.pop(name)
        status = await asyncio.to_thread(child.stop, STOP_TIMEOUT_S)
        if status != 0:
            raise PeerError(f"{name} ended with {status}:\n{child.log()[-2000:]}")

    async def stop_all(self) -> None:
        """Stop all processes, electors first, so that they elect no new master."""
        for name in sorted(self._children, key=lambda name: not name.startswith("elector")):
            await self.stop(name)

    def kill_all(self) -> None:
        """Kill all remaining processes, frozen ones too."""
        for child in self._children.values():
            child.kill()

    async def switch_over(self) -> Mapping[str, Any]:
        """Make a different member the master with `cometmq ha switchover`."""
        return await self._ask("switchover", is_tried=True)

    async def status(self) -> Status:
        return await self._ask("status")

    async def until_complete(self) -> Status:
        """Wait until every copy is in sync."""
        return await self._until(
            lambda it: [one["state"] for one in it["members"]] == ["ok"] * self.copies,
            "all copies in sync",
        )

    async def until_equal(self) -> int:
        """Wait until all copies end at the master's confirm offset; return it."""
        await self.until_complete()
        status = await self._until(
            lambda it: {one["max_offset"] for one in it["members"]} == {_confirmed(it)},
            "all copies of equal length",
        )
        return _confirmed(status)

    async def until_master_is_not(self, ordinal: int) -> Status:
        """Wait until the record names a different master."""
        return await self._until(lambda it: it["master"] not in (None, ordinal), "another master")

    async def _until(self, condition: Callable[[Status], bool], what: str) -> Status:
        deadline = monotonic() + SETTLE_TIMEOUT_S
        while not condition(status := await self.status()):
            if monotonic() > deadline:
                raise PeerError(f"not within {SETTLE_TIMEOUT_S} s: {what}: {status}")
            await asyncio.sleep(POLL_S)
        return status

    async def _ask(self, verb: str, *, is_tried: bool = False) -> dict[str, Any]:
        """Run `cometmq ha VERB --json`; if `is_tried` is set, raise PeerError when it fails."""
        process = await asyncio.create_subprocess_exec(
            *(str(PROGRAM), "ha", verb, "-c", str(self._conf(elector(0))), "--json"),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, errors = await process.communicate()
        try:
            answer: dict[str, Any] = json.loads(out)
        except ValueError:
            raise PeerError(f"cometmq ha {verb}: {errors.decode().strip()}") from None
        if is_tried and process.returncode != 0:
            raise PeerError(f"cometmq ha {verb}: {errors.decode().strip()}: {answer}")
        return answer

    async def _run(self, name: str, *words: str) -> None:
        log = self._folder / "logs" / f"{name}.log"
        child = Child(name, [str(PROGRAM), *words, "--log-text"], log_path=log, cwd=self._folder)
        self._children[name] = child
        ready = f"{name.partition('-')[0]}.ready"
        await asyncio.to_thread(child.wait_for_log, ready, START_TIMEOUT_S)

    def _conf(self, name: str) -> Path:
        return self._folder / f"{name}.conf"

    def _broker_settings(self, ordinal: int) -> str:
        return _BROKER.format(
            group=GROUP,
            host=HOST,
            ordinal=ordinal,
            port=self._ports[ordinal],
            control=self._controls[ordinal],
            folder=self._folder,
            namesrv=self.namesrv,
            members=_members(self._ports),
            min_in_sync=self._min_in_sync,
        )

    def _elector_settings(self) -> str:
        return _ELECTOR.format(
            group=GROUP,
            folder=self._folder,
            members=_members(self._controls),
            min_in_sync=self._min_in_sync,
        )


def _confirmed(status: Status) -> int:
    """Return the confirm offset of the master; slaves report 0."""
    return max(int(one["confirm_offset"]) for one in status["members"])


def _members(ports: list[int]) -> str:
    return ";".join(f"{ordinal}={HOST}:{port}" for ordinal, port in enumerate(ports))
