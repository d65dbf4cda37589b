# SPDX-License-Identifier: Apache-2.0
"""Runs a group: a name server, brokers and electors on separate hosts, and a record in etcd."""

import asyncio
import json
import os
import secrets
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

from cometmq.peers.comet import PROGRAM
from cometmq.peers.errors import PeerError
from cometmq.peers.etcd import Etcd
from cometmq.peers.ha.disk import Disk
from cometmq.peers.ha.network import OURS, Network
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

GROUP: Final = "orders"
ELECTOR_COUNT: Final = 2
RECORD: Final = "record"
"""The host of etcd."""
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
controlBindAddress={host}
storePathRootDir={store}
mappedFileSizeCommitLog=1048576
diskSpaceCleanForciblyRatio=100
diskSpaceWarningLevelRatio=100
namesrvAddr={namesrv}
groupRecord=etcd:{record}/{group}
groupKeyFile={key}
groupMembers={members}
minInSync={min_in_sync}
switchoverTimeoutMills=10000
"""
_ELECTOR: Final = """\
brokerName={group}
groupRecord=etcd:{record}/{group}
groupKeyFile={key}
controlMembers={members}
minInSync={min_in_sync}
"""

_HOOK: Final = """\
#!/bin/sh
# A virtual address of the simulated hosts: the router's route to it leads to the master.
own=$(ip -4 -oneline address show dev eth0 | awk '{{sub("/.*", "", $4); print $4}}')
case $1 in
master)
    ip address replace {address}/32 dev lo
    exec nsenter --net={router} -- ip route replace {address}/32 via "$own"
    ;;
*)
    ip address delete {address}/32 dev lo 2>/dev/null || true
    ;;
esac
"""
FROZEN_MASTER_MS: Final = 2_000


def broker(ordinal: int) -> str:
    return f"broker-{ordinal}"


def elector(number: int) -> str:
    return f"elector-{number}"


def hosts(copies: int) -> list[str]:
    """Return the hosts that a group needs; a process runs on the host of its name."""
    return [
        RECORD,
        *(broker(ordinal) for ordinal in range(copies)),
        *(elector(number) for number in range(ELECTOR_COUNT)),
    ]


class BrokerGroup:
    """All processes of one group; a process is named `broker-0`, `elector-0` and so on."""

    def __init__(
        self, folder: Path, network: Network, *, copies: int, min_in_sync: int, address: str = ""
    ) -> None:
        """`network` must have the hosts that `hosts` returns, and must be running.

        `address` leads to the master: brokers move it by their role hook.
        """
        self.copies = copies
        self.network = network
        self.namesrv = f"{network.address(OURS)}:{free_port()}"
        self.disks = [Disk(folder / f"disk-{ordinal}") for ordinal in range(copies)]
        self._folder = folder
        self._min_in_sync = min_in_sync
        self._address = address
        port = free_broker_port()
        self._ports = [port if address else free_broker_port() for _ in range(copies)]
        self._controls = [free_port() for _ in range(copies)]
        self.struck_at = 0.0
        """When the latest fault took effect, in monotonic seconds."""
        self._children: dict[str, Child] = {}
        prefix = network.command(RECORD, [])
        self._etcd = Etcd(folder, host=network.address(RECORD), prefix=prefix)

    def store(self, ordinal: int) -> Path:
        return self.disks[ordinal].store

    def address(self, ordinal: int) -> str:
        """Return a broker's own address."""
        return f"{self.network.address(broker(ordinal))}:{self._ports[ordinal]}"

    def slaves(self, master: int) -> list[int]:
        return [ordinal for ordinal in range(self.copies) if ordinal != master]

    async def start(self, *, backup: Path | None = None) -> None:
        """Start all processes, and wait until every copy is in sync.

        The first member starts with a copy of the store in `backup`, the others without a store.
        """
        for disk in self.disks:
            await asyncio.to_thread(disk.mount)
        if backup is not None:
            await asyncio.to_thread(shutil.copytree, backup, self.store(0))
        await asyncio.to_thread(self._etcd.start)
        self._key.write_text(f"{secrets.token_hex(32)}\n")
        for ordinal in range(self.copies):
            self._conf(broker(ordinal)).write_text(self._broker_settings(ordinal))
        for number in range(ELECTOR_COUNT):
            self._conf(elector(number)).write_text(self._elector_settings())
        port = self.namesrv.rpartition(":")[2]
        await self._run("namesrv", OURS, "namesrv", "--listen-port", port)
        for ordinal in range(self.copies):
            await self.start_again(broker(ordinal))
        for number in range(ELECTOR_COUNT):
            await self.start_again(elector(number))
        await self.until_complete()

    async def start_again(self, name: str) -> None:
        """Start a broker or an elector, and wait until it is ready."""
        await self._run(name, name, name.partition("-")[0], "-c", str(self._conf(name)))

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and wait until it has ended."""
        self._children[name].kill()
        self.strike()

    def strike(self) -> None:
        """Note that a fault takes effect now."""
        self.struck_at = monotonic()

    def freeze(self, name: str) -> None:
        """Freeze a process with SIGSTOP, as if its machine were suspended."""
        os.killpg(self._children[name].pid, signal.SIGSTOP)
        self.strike()

    def has_ended(self, name: str) -> bool:
        """Return whether a process has ended by itself."""
        return self._children[name].exit_status is not None

    def thaw(self, name: str) -> None:
        os.killpg(self._children[name].pid, signal.SIGCONT)

    async def stop(self, name: str) -> None:
        """Stop a process with SIGTERM; raise PeerError unless it exits with status 0."""
        child = self._children.pop(name)
        self.strike()
        status = await asyncio.to_thread(child.stop, STOP_TIMEOUT_S)
        if status != 0:
            raise PeerError(f"{name} ended with {status}:\n{child.log()[-2000:]}")

    async def stop_all(self) -> None:
        """Stop all processes, electors first, so that they elect no new master."""
        for name in sorted(self._children, key=lambda name: not name.startswith("elector")):
            await self.stop(name)

    def clear(self) -> None:
        """Kill all remaining processes, frozen ones too, and unmount the disks."""
        for child in self._children.values():
            child.kill()
        self._etcd.stop()
        for disk in self.disks:
            disk.unmount()

    async def switch_over(self) -> Mapping[str, Any]:
        """Make a different member the master with `cometmq ha switchover`."""
        self.strike()
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

    async def _run(self, name: str, host: str, *words: str) -> None:
        log = self._folder / "logs" / f"{name}.log"
        command = self.network.command(host, [str(PROGRAM), *words, "--log-text"])
        child = Child(name, command, log_path=log, cwd=self._folder)
        self._children[name] = child
        ready = f"{name.partition('-')[0]}.ready"
        await asyncio.to_thread(child.wait_for_log, ready, START_TIMEOUT_S)

    @property
    def _key(self) -> Path:
        """The file with the key of the group."""
        return self._folder / "group.key"

    def _conf(self, name: str) -> Path:
        return self._folder / f"{name}.conf"

    def _broker_settings(self, ordinal: int) -> str:
        settings = _BROKER.format(
            group=GROUP,
            host=self.network.address(broker(ordinal)),
            ordinal=ordinal,
            port=self._ports[ordinal],
            control=self._controls[ordinal],
            store=self.store(ordinal),
            namesrv=self.namesrv,
            record=self._etcd.endpoint,
            key=self._key,
            members=self._members(self._ports),
            min_in_sync=self._min_in_sync,
        )
        return settings + (self._address_settings() if self._address else "")

    def _address_settings(self) -> str:
        hook = self._folder / "role-hook"
        hook.write_text(_HOOK.format(address=self._address, router=self.network.router))
        hook.chmod(0o755)
        return (
            f"bindAddress=\ngroupAddress={self._address}:{self._ports[0]}\nroleHook={hook}\n"
            f"frozenMasterMills={FROZEN_MASTER_MS}\n"
        )

    def _elector_settings(self) -> str:
        return _ELECTOR.format(
            group=GROUP,
            record=self._etcd.endpoint,
            key=self._key,
            members=self._members(self._controls),
            min_in_sync=self._min_in_sync,
        )

    def _members(self, ports: list[int]) -> str:
        address = self.network.address
        return ";".join(f"{n}={address(broker(n))}:{port}" for n, port in enumerate(ports))


def _confirmed(status: Status) -> int:
    """Return the confirm offset of the master; slaves report 0."""
    return max(int(one["confirm_offset"]) for one in status["members"])
