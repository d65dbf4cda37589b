# SPDX-License-Identifier: Apache-2.0
"""The processes of the demo: a name server, an elector, three brokers. None outlives the demo."""

import asyncio
import json
import secrets
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

from cometmq.client.admin import AdminClient
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.peers.demo.children import end
from cometmq.peers.demo.progress import DemoFailed
from cometmq.peers.ports import members_at
from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, HOST, reserve_port

GROUP: Final = "orders"
BROKER_COUNT: Final = 3
START_TIMEOUT_S: Final = 30
SETTLE_TIMEOUT_S: Final = 40
POLL_S: Final = 0.1

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
namesrvAddr={namesrv}
groupRecord=file:{folder}/record.json
groupKeyFile={folder}/group.key
groupMembers={members}
"""
_ELECTOR: Final = """\
brokerName={group}
groupRecord=file:{folder}/record.json
groupKeyFile={folder}/group.key
controlMembers={members}
"""


class Group:
    """A broker group whose record is a file."""

    def __init__(self, folder: Path) -> None:
        self.namesrv = f"{HOST}:{reserve_port()}"
        self._folder = folder
        self._ports = [reserve_port(BROKER_NEIGHBOURS) for _ in range(BROKER_COUNT)]
        self._controls = [reserve_port() for _ in range(BROKER_COUNT)]
        self._children: dict[str, Process] = {}

    async def start(self) -> None:
        """Start all processes; wait until the group is complete and clients find its master."""
        key = self._folder / "group.key"
        key.touch(mode=0o600)
        key.write_text(f"{secrets.token_hex(32)}\n")
        elector = self._folder / "elector.conf"
        elector.write_text(
            _ELECTOR.format(group=GROUP, folder=self._folder, members=members_at(self._controls))
        )
        await self._run("namesrv", "namesrv", "--listen-port", self.namesrv.rpartition(":")[2])
        for ordinal in range(BROKER_COUNT):
            self._broker_file(ordinal).write_text(self._settings(ordinal))
            await self.start_broker(ordinal)
        await self._run("elector", "elector", "-c", str(elector))
        await self.until_complete()
        await self._until_routed()

    async def start_broker(self, ordinal: int) -> None:
        """Start a broker on its store."""
        await self._run(_name(ordinal), "broker", "-c", str(self._broker_file(ordinal)))

    def kill(self, ordinal: int) -> None:
        """Kill a broker with SIGKILL."""
        self._children[_name(ordinal)].kill()

    def freeze(self, ordinal: int) -> None:
        """Freeze a broker with SIGSTOP, as if its machine were suspended."""
        self._children[_name(ordinal)].send_signal(signal.SIGSTOP)

    def thaw(self, ordinal: int) -> None:
        """Resume a frozen broker."""
        self._children[_name(ordinal)].send_signal(signal.SIGCONT)

    async def switch_over(self) -> int:
        """Make another member the master; return its ordinal."""
        return int((await self._ask("ha", "switchover"))["master"])

    async def status(self) -> Status:
        """Return the record and the states of the members."""
        return await self._ask("ha", "status")

    async def until_complete(self) -> Status:
        """Wait until every broker is in sync."""
        return await self._until(
            lambda it: [one["state"] for one in it["members"]] == ["ok"] * BROKER_COUNT,
            "all brokers in sync",
        )

    async def until_master_is_not(self, ordinal: int) -> Status:
        """Wait until the record names a different master."""
        return await self._until(lambda it: it["master"] not in (None, ordinal), "a new master")

    async def _until(self, condition: Callable[[Status], bool], what: str) -> Status:
        deadline = monotonic() + SETTLE_TIMEOUT_S
        while not condition(status := await self.status()):
            if monotonic() > deadline:
                raise DemoFailed(f"no {what} within {SETTLE_TIMEOUT_S} s")
        return status

    async def _until_routed(self) -> None:
        """Wait until the name server lists the master, which registers after its promotion."""
        async with AdminClient(namesrv=self.namesrv) as admin:
            deadline = monotonic() + SETTLE_TIMEOUT_S
            while MASTER_ID not in (await admin.broker_groups()).get(GROUP, {}):
                if monotonic() > deadline:
                    raise DemoFailed(f"no master in the routes within {SETTLE_TIMEOUT_S} s")
                await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End all processes."""
        for process in self._children.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
        async with asyncio.TaskGroup() as group:
            for process in self._children.values():
                group.create_task(end(process))

    async def _ask(self, *words: str) -> dict[str, Any]:
        """Run a command with `--json` and return its output, regardless of its exit status."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cometmq.cli", *words),
            *("-c", str(self._folder / "elector.conf"), "--json"),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        out, errors = await process.communicate()
        try:
            answer: dict[str, Any] = json.loads(out)
        except ValueError:
            raise DemoFailed(f"cometmq {' '.join(words)}: {errors.decode().strip()}") from None
        return answer

    async def _run(self, name: str, *words: str) -> None:
        """Start a program in its own session, and wait until it is ready."""
        log = self._folder / f"{name}.log"
        written = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cometmq.cli", *words, "--log-text"),
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._children[name] = process
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while b".ready" not in (text := log.read_bytes()[written:]):
                    if process.returncode is not None:
                        raise DemoFailed(f"{name} ended: {text.decode(errors='replace').strip()}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DemoFailed(f"{name} was not ready within {START_TIMEOUT_S} s") from error

    def _broker_file(self, ordinal: int) -> Path:
        return self._folder / f"broker-{ordinal}.conf"

    def _settings(self, ordinal: int) -> str:
        return _BROKER.format(
            group=GROUP,
            host=HOST,
            ordinal=ordinal,
            port=self._ports[ordinal],
            control=self._controls[ordinal],
            folder=self._folder,
            namesrv=self.namesrv,
            members=members_at(self._ports),
        )


def _name(ordinal: int) -> str:
    return f"broker-{ordinal}"
