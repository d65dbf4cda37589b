# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence that `cometmq doctor` examines; writes and reads the archive of `debug
bundle`.
"""

import asyncio
import gzip
import io
import os
import platform
import re
import socket
import tarfile
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cometmq.cli.connecting import with_access
from cometmq.cli.verbs.about import wire_version
from cometmq.client import ClientOptions
from cometmq.client.admin import AdminClient
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.option_checks import parse_addresses
from cometmq.insight.findings import Finding, findings
from cometmq.insight.history import History
from cometmq.insight.model import Broker, BrokerState, Snapshot, Topic, TopicKind, Unknown
from cometmq.insight.reading import each
from cometmq.insight.snapshot import look
from cometmq.remoting.errors import UNREADABLE_JSON, CometError, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.addresses import parse_address
from cometmq.runtime.redaction import redacted_setting, redacted_text
from cometmq.runtime.version import VERSION

CONNECT_S: Final = 3.0
RATES_S: Final = 1.1
"""A rate needs two snapshots, at least a second apart."""
UNRESOLVED: Final = "the name cannot be resolved"
EVIDENCE: Final = "evidence.json"
ENTRY_BYTES_MAX: Final = 64 << 20
BUNDLE_BYTES_MAX: Final = 256 << 20
LOG_BYTES_MAX: Final = 4 << 20
"""The archive contains this many of the newest bytes of each log."""
LOGS_MAX: Final = 16
_UPTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_SAFE: Final = re.compile(r"[^\w.-]")


Add = Callable[[AdminClient, Snapshot], Awaitable[Snapshot]]


class Server(msgspec.Struct, frozen=True):
    """The outcome of one attempt to reach an address."""

    address: str
    kind: str
    """`name server` or `broker NAME`."""
    resolved: Sequence[str] = ()
    connect_ms: int | None = None
    error: str = ""
    brokers: Sequence[str] | None = None
    """The brokers that a name server lists, as NAME:ID=ADDRESS."""


class Evidence(msgspec.Struct, frozen=True):
    """The state of a cluster as seen from one machine."""

    taken_ms: int
    host: str
    program: str
    servers: Sequence[Server]
    snapshot: Snapshot | None
    failure: str = ""
    """Why there is no snapshot; empty if there is one."""
    clocks_s: Mapping[str, float] = {}
    """How far the clock of each broker is ahead of this machine's; exact to a second or two."""
    found: Sequence[Finding] = ()


async def collect(
    namesrv: str, expected: Sequence[str] = (), *, has_rates: bool = False, add: Add | None = None
) -> Evidence:
    """Ask name servers and brokers; those that do not answer are part of the result.

    With `has_rates`, take two snapshots, because a rate needs them; `add` completes the last one.
    """
    servers: list[Server] = []
    snapshot, failure = None, ""
    options = with_access(ClientOptions())
    try:
        async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
            servers += [await _namesrv(it) for it in admin.namesrv.each()]
            history = History()
            snapshot = await look(admin, history=history, expected=expected)
            if has_rates:
                await asyncio.sleep(RATES_S)
                snapshot = await look(admin, history=history, expected=expected)
            if add is not None:
                snapshot = await add(admin, snapshot)
    except CometError as error:
        failure = str(error)
        known = {it.address for it in servers}
        servers += [
            await _reached(address, "name server")
            for address in parse_addresses(namesrv)
            if address not in known
        ]
    if snapshot is not None:
        async with asyncio.TaskGroup() as tasks:
            tries = [
                tasks.create_task(_reached(it.address, f"broker {it.name}:{it.broker_id}"))
                for it in snapshot.brokers
                if it.address
            ]
        servers += [task.result() for task in tries]
    return Evidence(
        taken_ms=wall_ms(),
        host=socket.gethostname(),
        program=f"cometmq {VERSION}, wire {wire_version()}, Python {platform.python_version()}",
        servers=servers,
        snapshot=None if snapshot is None else _without_secrets(snapshot),
        failure=failure,
        clocks_s=_clocks(snapshot),
        found=[] if snapshot is None else findings(snapshot),
    )


async def _namesrv(namesrv: NamesrvAdmin) -> Server:
    reached = await _reached(namesrv.address, "name server")
    try:
        info = await namesrv.cluster()
    except CometError as error:
        return msgspec.structs.replace(reached, error=reached.error or str(error))
    names = [
        f"{name}:{number}={place}"
        for name, data in sorted(info.broker_addr_table.items())
        for number, place in sorted(data.broker_addrs.items())
    ]
    return msgspec.structs.replace(reached, brokers=names)


async def _reached(address: str, kind: str) -> Server:
    """Resolve a name, and connect to it."""
    begun_ms = monotonic_ms()
    try:
        host, port = parse_address(address)
        async with asyncio.timeout(CONNECT_S):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            resolved = sorted({str(it[4][0]) for it in found})
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except TimeoutError:
        return Server(address, kind, error=f"no connection within {CONNECT_S:g} s")
    except socket.gaierror as error:
        return Server(address, kind, error=f"{UNRESOLVED}: {error.strerror}")
    except OSError as error:  # event loops word its text differently
        return Server(address, kind, error=os.strerror(error.errno) if error.errno else str(error))
    except SettingsError as error:
        return Server(address, kind, error=str(error))
    return Server(address, kind, resolved, monotonic_ms() - begun_ms)


def _clocks(snapshot: Snapshot | None) -> dict[str, float]:
    """Return how far brokers' clocks are ahead, from their start time and how long they run."""
    found: dict[str, float] = {}
    for broker in () if snapshot is None else snapshot.brokers:
        state = broker.state
        if isinstance(state, BrokerState) and snapshot is not None:
            uptime = _UPTIME.fullmatch(state.runtime.get("runtime", ""))
            begun = state.runtime.get("bootTimestamp", "")
            if uptime is not None and begun.isdecimal():
                days, hours, minutes, seconds = map(int, uptime.groups())
                run_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
                there_s = int(begun) / 1000 + run_s
                found[f"{broker.name}:{broker.broker_id}"] = round(
                    there_s - snapshot.taken_ms / 1000, 1
                )
    return found


def _without_secrets(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot whose settings and texts contain no secrets."""

    def clean(broker: Broker) -> Broker:
        state = broker.state
        if not isinstance(state, BrokerState) or state.settings is None:
            return broker
        settings = {name: redacted_setting(name, text) for name, text in state.settings.items()}
        return msgspec.structs.replace(
            broker, state=msgspec.structs.replace(state, settings=settings)
        )

    return msgspec.structs.replace(snapshot, brokers=[clean(it) for it in snapshot.brokers])


def with_ages(names: Collection[str]) -> Add:
    """Return a function that adds the times of the newest messages of these topics, or of all, to a
    snapshot. Snapshots of many topics lack these times.
    """

    async def add(admin: AdminClient, snapshot: Snapshot) -> Snapshot:
        async def completed(topic: Topic) -> Topic:
            is_wanted = topic.name in names or (not names and topic.kind is TopicKind.NORMAL)
            if not (is_wanted and isinstance(topic.last_write_ms, Unknown)):
                return topic
            try:
                stats = await admin.topic_stats(topic.name)
            except CometError as error:  # as for a topic that was deleted meanwhile
                return msgspec.structs.replace(topic, last_write_ms=Unknown(str(error)))
            last_ms = max((it.last_update_timestamp for it in stats.values()), default=0)
            return msgspec.structs.replace(topic, last_write_ms=last_ms or None)

        if isinstance(snapshot.topics, Unknown):
            return snapshot
        return msgspec.structs.replace(snapshot, topics=await each(snapshot.topics, completed))

    return add


# -- archives ---------------------------------------------------------------------------------


def write_bundle(file: Path, evidence: Evidence, logs: Iterable[Path]) -> list[str]:
    """Write the archive, readable by its owner only; return the names of its entries.

    Raise SettingsError if a file cannot be read or written.
    """
    entries = {EVIDENCE: msgspec.json.format(msgspec.json.encode(evidence), indent=1)}
    for broker in () if evidence.snapshot is None else evidence.snapshot.brokers:
        if isinstance(broker.state, BrokerState):
            folder = f"brokers/{_SAFE.sub('_', broker.name)}-{broker.broker_id}"
            entries[f"{folder}/runtime.txt"] = _lines(broker.state.runtime)
            entries[f"{folder}/settings.txt"] = _lines(broker.state.settings or {})
    for number, log in enumerate(list(logs)[:LOGS_MAX]):
        entries[f"logs/{number}-{_SAFE.sub('_', log.name)}"] = _tail(log)
    try:
        with file.open("xb") as raw:
            file.chmod(0o600)
            with tarfile.open(fileobj=raw, mode="w:gz") as archive:
                for name, data in entries.items():
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mtime = len(data), evidence.taken_ms // 1000
                    archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise SettingsError(f"cannot write {file}: {error.strerror or error}") from error
    return list(entries)


def _lines(values: Mapping[str, str]) -> bytes:
    return "".join(f"{name}={text}\n" for name, text in sorted(values.items())).encode()


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - LOG_BYTES_MAX))
            data = file.read(LOG_BYTES_MAX)
    except OSError as error:
        raise SettingsError(f"cannot read {log}: {error.strerror}") from error
    return redacted_text(data.decode("utf-8", "replace")).encode()


def read_bundle(file: Path) -> Evidence:
    """Return the evidence in an archive, without unpacking it.

    Only the header and the content of its first entry are decompressed: a stranger may have made
    the archive, and links or long headers would make `tarfile` read all of it. Raise SettingsError
    for a file that is not a bundle, or is too large for one.
    """
    try:
        if file.stat().st_size > BUNDLE_BYTES_MAX:
            raise SettingsError(f"{file} is larger than any bundle")
        with gzip.open(file) as archive:
            entry = tarfile.TarInfo.frombuf(archive.read(tarfile.BLOCKSIZE), "utf-8", "replace")
            if entry.name != EVIDENCE or not entry.isreg() or entry.size > ENTRY_BYTES_MAX:
                raise SettingsError(f"{file} is no bundle: its first entry is not {EVIDENCE}")
            data = archive.read(entry.size)
        return msgspec.json.decode(data, type=Evidence)
    except (OSError, EOFError, zlib.error, tarfile.TarError, *UNREADABLE_JSON) as error:
        raise SettingsError(f"{file} is no bundle of debug bundle: {error}") from error
