# SPDX-License-Identifier: Apache-2.0
"""Replication of a broker whose settings fix its role, as in RocketMQ 4.9.

Builds both sides and the background loops that drive them. The master's side serves slaves
(`streams/serving.py`); the slave's side follows the log (`streams/rocketmq/slave.py`) and
copies the tables (`tables/from_master.py`). Members of a broker group are built in `joining.py`.
"""

from collections.abc import Awaitable, Coroutine, Iterator

from cometmq.broker.broker import Broker
from cometmq.broker.copies.streams.rocketmq.slave import SlaveFollower
from cometmq.broker.copies.streams.rocketmq.slave_addresses import SlaveAddresses, parse_allowed
from cometmq.broker.copies.streams.serving import IDLE_INTERVAL_MS, TICK_INTERVAL_MS, LogServer
from cometmq.broker.copies.tables.from_master import Copied, MasterCopies
from cometmq.broker.handlers.deferred_answers import found
from cometmq.broker.registration.identity import Invoker, slave_hosts
from cometmq.runtime.tasks import every
from cometmq.runtime.worker import Worker


def log_server(broker: Broker, worker: Worker, client: Invoker) -> LogServer:
    """Build the server for slaves; it does not listen yet. `worker` reads cold slices, and `client`
    asks name servers for the slaves of this broker.
    """

    def look_up() -> Awaitable[list[str] | None]:
        return slave_hosts(client, list(broker.registration.links), broker.settings.broker_name)

    return LogServer(
        broker.driver,
        broker.replication.slaves,
        worker=worker,
        settings=lambda: broker.settings,
        addresses=SlaveAddresses(
            parse_allowed(broker.settings.ha_slave_addresses),
            look_up,
            now_ms=broker.clock.monotonic_ms,
            log=broker.log,
        ),
        clock=broker.clock,
        log=broker.log,
    )


def replication_loops(
    broker: Broker, server: LogServer, client: Invoker
) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
    """Yield the name and the coroutine of each loop; the loops of the slave's side do nothing on a
    master.
    """
    follower, copies = slave_side(broker, client)

    def tick() -> None:
        server.tick()
        follower.tick()

    def tick_interval_ms() -> int:
        is_idle = server.connection_count == 0 and not broker.role.is_slave
        return IDLE_INTERVAL_MS if is_idle else TICK_INTERVAL_MS

    settings, log = broker.settings, broker.log
    yield "follow", follower.run()
    yield "slave-addresses", server.addresses.run()
    yield "replication", every(tick_interval_ms, tick, name="replication", log=log)
    yield (
        "copies",
        every(
            settings.slave_sync_interval_mills,
            copies.step,
            name="copies",
            log=log,
            first_ms=settings.slave_sync_delay_mills,
        ),
    )


def slave_side(broker: Broker, client: Invoker) -> tuple[SlaveFollower, MasterCopies]:
    """Build what follows the master's log, and what copies the master's tables.

    They call each other: before the follower connects, `MasterCopies` compares the two logs, and a
    later comparison that fails is reported to the follower.
    """
    status = broker.replication.following

    def is_slave() -> bool:
        return broker.role.is_slave and not broker.process.is_stopping

    def inspect() -> Awaitable[None]:
        return copies.inspect()

    follower = SlaveFollower(
        broker.driver,
        status,
        is_slave=is_slave,
        address=lambda: master_ha_address(broker),
        inspect=inspect,
        settings=lambda: broker.settings,
        clock=broker.clock,
        log=broker.log,
    )
    copies = MasterCopies(
        Copied(
            broker.tables.topics,
            broker.tables.groups,
            broker.tables.offsets,
            broker.deferred.delays.positions,
        ),
        status,
        client=client,
        registration=broker.registration,
        saver=broker.tables.saver,
        commit_log=broker.store.commit_log,
        newest_record=lambda: found(broker, broker.store.reader.newest_record()),
        is_slave=is_slave,
        note_unfit=follower.note_unfit,
        settings=lambda: broker.settings,
        clock=broker.clock,
        log=broker.log,
    )
    return follower, copies


def master_ha_address(broker: Broker) -> str:
    """Return the master's HA address: the configured one, or the one that name servers report."""
    address = broker.settings.ha_master_address or broker.registration.registrant.master_ha_address
    return "" if address == broker.registration.registrant.identity.ha_server_addr else address
