# SPDX-License-Identifier: Apache-2.0
"""Simulates a host with a broker: the real store, streams, member, leader and gate.

`Host` holds the state that survives a kill; `BrokerProcess` holds the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.sim.disk import SimDisk, SimFiles, SimWorker
from tests.sim.kernel import ProcessLoop
from tests.sim.tables import SimDelays, SimPositions, SimTable

from cometmq.broker.copies.gate.diversion import Gate
from cometmq.broker.copies.joining import Joined, join, open_state
from cometmq.broker.copies.roles.parts import Around, Surroundings
from cometmq.broker.copies.state import FollowProgress
from cometmq.broker.copies.streams.replica import tail_path
from cometmq.broker.copies.streams.served import SendTurns
from cometmq.broker.role import RoleState, ServedRole
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.tables.journal import Journal
from cometmq.broker.turn import OncePerTurn
from cometmq.control.controlled import Report
from cometmq.ha.proof import Keys
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply, Response
from cometmq.remoting.errors import CometError, ConnectFailed, RequestTimeout, ServiceNotAvailable
from cometmq.store.message_store import MessageStore
from cometmq.store.results import PutResult, PutStatus
from cometmq.testing.store.builders import SMALL, START_MS, make_message

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP: Final = "broker-a"
MEMBERS: Final = ";".join(f"{number}=b{number}:10911" for number in range(5))
KEY: Final = b"the key of the group that is simulated"
TICK_S: Final = 0.1
QUEUE_COUNT: Final = 2

Answered = Callable[[Any, Exception | None], None]


class Host:
    """A machine: its disk, its clocks, and the process that runs on it."""

    def __init__(self, world: "World", ordinal: int, settings: dict[str, Any]) -> None:
        random = world.random
        self.world = world
        self.ordinal = ordinal
        self.name = f"b{ordinal}"
        self.disk = SimDisk()
        self.files = SimFiles()
        self.is_up = True
        self.is_wanted = True
        """Whether the process is restarted after it has ended."""
        self.boot = 0
        self.rate = 1 + world.plan.clock_drift * (random.random() * 2 - 1)
        self.wall_jump_ms = 0
        self.disk_latency_s = 0.001
        self.process: BrokerProcess | None = None
        self.settings = msgspec.structs.replace(
            BrokerSettings(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__}),
            broker_name=GROUP,
            broker_id=ordinal,
            group_record="file:/nowhere",
            group_members=MEMBERS,
            **settings,
        )
        self.surroundings = Surroundings(
            self.files,
            lambda: f"boot{self.boot}",
            self.boottime_ms,
            self._new_incarnation,
            lambda folder, _, offset, epoch: tail_path(folder, offset, epoch),
            world.random.randbytes,
        )
        self._incarnation_count = 0

    # Clocks

    def boottime_ms(self) -> int:
        return int(self.world.scheduler.now * self.rate * 1000)

    monotonic_ms = boottime_ms

    def now_ms(self) -> int:
        return START_MS + self.boottime_ms() + self.wall_jump_ms

    def disk_latency(self) -> float:
        return self.disk_latency_s * (0.2 + self.world.random.random())

    def _new_incarnation(self) -> str:
        self._incarnation_count += 1
        return f"{self.name}.{self._incarnation_count}"

    # Faults

    def start(self) -> None:
        """Start the process, unless it is running."""
        if self.process is None and self.is_up and self.is_wanted:
            self.world.note(self.name, "starts")
            process = BrokerProcess(self)
            try:
                process.open()
            except (CometError, OSError) as error:
                self.world.note(self.name, "cannot start", error=str(error))
                process.loop.kill()
                self.disk.kill()
                self.world.scheduler.after(0.5, self.start)

    def kill(self, *, is_host: bool = False) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.end(is_host=is_host)
        self.disk.kill()

    def crash(self) -> None:
        self.kill(is_host=True)
        lost = self.disk.crash_host(self.world.random)
        self.is_up = False
        self.boot += 1
        self.world.note(self.name, "host crashes", files_cut=lost)

    def mount(self, disk: SimDisk, files: SimFiles) -> None:
        """Restart with a different store."""
        self.kill()
        self.disk, self.files = disk, files
        self.surroundings = self.surroundings._replace(files=files)
        self.start()

    def boot_again(self) -> None:
        self.is_up = True
        self.start()


class _Nothing:
    """A stand-in for parts of a broker that replication does not use; its methods do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


def _ignore(*_: object, **__: object) -> None:
    pass


class SimBroker:
    """The attributes of `cometmq.broker.broker.Broker` that the components of a group use."""

    def __init__(self, host: Host, store: MessageStore, driver: StoreDriver) -> None:
        self.settings = host.settings
        self.has_key = host.world.plan.has_key
        self.clock = host
        self.log = host.world.log(host.name)
        self.store = store
        self.driver = driver
        self.delays = SimDelays(SimPositions("delay.json"))
        self.topics = SimTable("topics.json")
        others = map(SimTable, ("groups.json", "offsets.json", "filters.json"))
        self.journaled = self.topics, *others, self.delays.positions
        self.tables = self.replication = self.config = self.role = self.deferred = self
        self.clients = self.pending = self
        self.transactions = self.locks = self.hold = _Nothing()
        self.following = FollowProgress()
        self.journal: Journal | None = None
        self.is_diverting = False
        self.loaded = self
        self.admission = self.member_keys = self
        self.take(ServedRole.FENCED, 0)

    def label(self, name: str) -> str:
        return name

    def current(self) -> Keys:
        """Return the keys of the group."""
        return (KEY,) if self.has_key else ()

    def take(self, role: ServedRole, epoch: int) -> None:
        self.state = RoleState(role, epoch)
        self.store.write_state.role_writable = self.store.writer.needs_replicas = (
            role is ServedRole.MASTER
        )


class SimServer:
    """The replication port, like `copies.streams.serving.LogServer` without slaves."""

    def __init__(self) -> None:
        self.members: Any = None
        self.addresses = self.openings = self
        self.send_turns = SendTurns()

    def serve_members(self, members: Any) -> None:
        self.members = members

    async def run(self) -> None:
        """Do nothing for ever: there are no slaves whose addresses matter."""
        await asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        self.members.wake()

    def tick(self) -> None:
        self.members.tick()

    def close_slaves(self) -> None:
        """Do nothing: the simulation has no slaves in RocketMQ's sense."""

    def establish(self, *_: object) -> bool:
        """Return that there is room for every member."""
        return True

    note_refused = remove = forget_refusals = _ignore


class BrokerProcess:
    """A broker process, from its start to its exit or crash."""

    copies: Joined
    store: MessageStore
    driver: StoreDriver
    broker: SimBroker

    def __init__(self, host: Host) -> None:
        world = host.world
        self.host = host
        self.world = world
        self.name = host.name
        self.loop = ProcessLoop(world.scheduler, host.name, rate=host.rate, failed=world.failed)
        self.loop.connect = partial(world.network.connect, self.loop, host.name)
        self.is_paused = False
        self.life = 0  # increases when all client connections are closed
        self._workers: list[SimWorker] = []
        self._tick_count = 0

    # Start and end

    def open(self) -> None:
        """Open the store, and begin to take part in the group."""
        self.loop.enter(self._open)

    def _open(self) -> None:
        host, world = self.host, self.world
        self.store = MessageStore.open(
            host.settings, disk=host.disk, clock_ms=host.now_ms, log=world.log(host.name),
            boot_id=f"boot{host.boot}", has_copies=True,
        )  # fmt: skip
        self._workers = [
            SimWorker(name, self.loop, world.scheduler, host.disk_latency)
            for name in Workers._fields
        ]
        threads: Any = self._workers
        workers = Workers(*threads)
        self.driver = StoreDriver(self.store, workers=workers, clock=host, log=world.log(host.name))
        self.broker = broker = SimBroker(host, self.store, self.driver)
        journal = Journal(
            host.disk, self.store.layout.journal, worker=workers.config,
            log=broker.log, file_bytes=1 << 16, keeps_position=True, turn=self.driver.turn,
        )  # fmt: skip
        for table in broker.journaled:
            journal.attach(table)
        opened = open_state(host.settings, self.store, journal, host.surroundings)
        broker.journal = journal
        self.driver.turn.noted.connect(OncePerTurn(journal.write))
        journal.begin()
        server: Any = SimServer()
        self.driver.turn.grew.connect(server.wake)
        sim_broker: Any = broker
        client: Any = self
        clients: Any = SimpleNamespace(reset=self._close_clients, is_open=True)
        around = Around(workers, client, server, lambda: [clients], _ignore, host.surroundings)
        self.copies = join(
            sim_broker, opened, around, journal=journal,
            record=world.place.port(self.loop, host.name),
        )  # fmt: skip
        handlers: dict[int, Any] = {
            Code.SEND_MESSAGE: self._send,
            Code.UPDATE_AND_CREATE_TOPIC: self._change,
            Code.LOCK_BATCH_MQ: self._lock,
            Code.GET_MAX_OFFSET: self._read,
        }
        self._handlers = self.gate.guarded(handlers)
        world.oracle.watch(self)
        host.process = self
        for name, loop in self.copies.loops().items():
            task = self.loop.create_task(loop, name=f"{self.name}-{name}")
            task.add_done_callback(self._task_ended)
        self.copies.begin()
        self._tick()

    def end(self, *, is_host: bool) -> None:
        """Kill the process; none of its code runs after this."""
        self.world.graveyard.append(self)
        self.loop.kill()
        self.world.network.end_process(self.loop, is_host=is_host)
        if not is_host and self.world.random.random() < 0.5:
            for worker in self._workers:
                worker.finish_one()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        self.world.failed(f"{task.get_name()} has ended: {error!r}")

    def _tick(self) -> None:
        self.driver.tick()
        self._tick_count += 1
        journal = self.broker.journal
        assert journal is not None
        if journal.fault and self._tick_count % 10 == 0:
            journal.retry()
        self.world.oracle.look(self)
        self.loop.call_later(TICK_S, self._tick)

    # For the oracle and the faults

    @property
    def gate(self) -> Gate:
        return self.copies.parts.gate

    @property
    def member(self) -> Any:
        return self.copies.member.state

    @property
    def is_master(self) -> bool:
        return self.member.role.is_leading

    @property
    def end_offset(self) -> int:
        return self.store.commit_log.end

    def log_bytes(self, start: int, end: int) -> bytes:
        """Return a part of the log, which may extend over several files."""
        log, data = self.store.commit_log, b""
        while start < end:
            size = log.files.file_size
            count = min(end - start, size - start % size)
            data += bytes(log.read(start, count))
            start += count
        return data

    # Calls of other processes

    def serve(self, work: Callable[["BrokerProcess"], Awaitable[Any]], reply: Answered) -> None:
        self.loop.call_soon(self._serve, work, reply)

    def _serve(self, work: Callable[["BrokerProcess"], Awaitable[Any]], reply: Answered) -> None:
        self.loop.create_task(self._worked(work, reply))

    async def _worked(
        self, work: Callable[["BrokerProcess"], Awaitable[Any]], reply: Answered
    ) -> None:
        try:
            result = await work(self)
        except CometError as error:
            reply(None, error)
        else:
            reply(result, None)

    async def report(self) -> Report:
        return Report(
            group=GROUP,
            status=self.copies.member.status(),
            master=self.member.master,
            record_uid=self.copies.member.watch.uid,
        )

    # Clients

    def request(self, code: int, ext: Mapping[str, str], body: bytes, reply: Answered) -> None:
        """Serve a client's request; send an answer only while this broker is allowed to."""
        self.loop.call_soon(self._request, code, ext, body, reply)

    def _request(self, code: int, ext: Mapping[str, str], body: bytes, reply: Answered) -> None:
        head = msgspec.json.encode({"code": code, "extFields": ext})
        call: Call[str] = Call(code=code, header=ext["key"], body=body, head=head)
        try:
            result: Any = self._handlers[code](None, call)
        except CometError as error:
            reply(None, error)
            return
        if asyncio.iscoroutine(result):
            result = self.loop.create_task(result)
        if isinstance(result, asyncio.Future):
            result.add_done_callback(partial(self._requested, call, self.life, reply))
        else:
            self._answer(call, self.life, result, reply)

    def _requested(
        self, call: Call[str], life: int, reply: Answered, future: "asyncio.Future[Any]"
    ) -> None:
        error = future.exception()
        if error is None:
            self._answer(call, life, future.result(), reply)
        elif isinstance(error, CometError):
            reply(None, error)
        else:
            self.world.failed(f"{self.name}: a request ended with {error!r}")

    def _answer(self, call: Call[str], life: int, result: Any, reply: Answered) -> None:
        """Write an answer as a connection does: after the journal, and only within the lease."""
        journal = self.broker.journal
        assert journal is not None
        journal.write()
        self.copies.roles.before_write()
        if life == self.life:  # otherwise the connection is closed
            if not isinstance(result, Reply):  # otherwise this broker has not served it
                self.world.oracle.answered(self, call, result)
            reply(result, None)

    def _close_clients(self) -> None:
        self.life += 1

    # Handlers

    def _send(self, _: Any, call: Call[str]) -> "asyncio.Future[PutResult]":
        future = self.loop.create_future()

        def done(result: PutResult) -> None:
            if not future.done():
                future.set_result(result)

        queue_id = len(call.body) % QUEUE_COUNT
        self.driver.put(make_message(queue_id=queue_id, body=call.body), done)
        return future

    def _change(self, _: Any, call: Call[str]) -> str:
        self.broker.topics.put(call.header, 1)
        return call.header

    def _lock(self, _: Any, call: Call[str]) -> str:
        return call.header

    def _read(self, _: Any, call: Call[str]) -> tuple[int, int]:
        return self.world.oracle.read(self)

    # As the client that the gate uses

    async def invoke(
        self,
        address: str,
        code: int,
        header: None,
        body: bytes,
        *,
        timeout_ms: int,
        ok: Any,
        ext: Mapping[str, str],
    ) -> Response:
        """Forward a request to another broker."""
        target = self.world.hosts[address.partition(":")[0]]
        future = self.loop.create_future()

        def answer(result: Any, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        network = self.world.network

        def reply(result: Any, error: Exception | None) -> None:
            network.send(
                target.name, self.name, partial(self.loop.call_soon, answer), result, error
            )

        def arrive() -> None:
            if target.process is not None:
                target.process.request(code, ext, body, reply)
            elif target.is_up:
                reply(None, ConnectFailed(f"{address} refuses"))

        network.send(self.name, target.name, arrive)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                result = await future
        except TimeoutError as error:
            raise RequestTimeout(f"{address} does not answer") from error
        if isinstance(result, Reply):  # the broker has not served the request
            return Response(result.code, None, dict(result.ext or {}), b"", result.remark)
        status = result.status if isinstance(result, PutResult) else PutStatus.PUT_OK
        if not status.is_stored:
            raise ServiceNotAvailable(f"{address} refuses: {status.name}")
        is_done = status is PutStatus.PUT_OK
        return Response(0 if is_done else ResponseCode.FLUSH_SLAVE_TIMEOUT, None, {}, b"")
