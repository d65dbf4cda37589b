# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of a cluster: `look` takes one, `Watch` keeps the newest for a while."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.figures import read_figures
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.insight.asking import BrokerAnswers, ask, unreachable
from cometmq.insight.building import Outcome, build
from cometmq.insight.history import History, Place
from cometmq.insight.model import (
    Certificate,
    Snapshot,
    TopicKind,
    Trouble,
    Unknown,
    Unreachable,
    known,
)
from cometmq.remoting.errors import CometError
from cometmq.runtime.clock import boottime_ms


async def look(
    admin: AdminClient,
    *,
    history: History | None = None,
    expected: Collection[str] = (),
    timeout_ms: int | None = None,
    further: Sequence[Certificate] = (),
) -> Snapshot:
    """Ask all brokers at the same time; return a snapshot, in which brokers without an answer are
    unreachable.

    A broker may take `timeout_ms` for all its answers, by default the time of one request of the
    client. Without a history of earlier snapshots, rates are unknown. `expected` names brokers that
    must be there, although no name server may list them; `further` are certificates that the caller
    knows. Raise CometError if no name server answers.
    """
    kept = History() if history is None else history
    timeout_ms = timeout_ms or admin.options.api_timeout_ms
    begun_ms, now_ms = monotonic_ms(), wall_ms()
    kept.began(now_ms, boottime_ms())
    places = await _places(admin)
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (place, tasks.create_task(_ask(admin, place, kept, timeout_ms, now_ms)))
            for place in places
        ]
    outcomes: list[Outcome] = [(place, task.result()) for place, task in asked]
    outcomes += _gone(outcomes, kept, expected, now_ms)
    outcomes.sort(key=lambda it: (it[0].cluster, it[0].name, it[0].broker_id))
    kept.places |= {place.address: place for place in places}
    found = build(
        ";".join(admin.namesrv.addresses),
        outcomes,
        kept,
        now_ms=now_ms,
        took_ms=monotonic_ms() - begun_ms,
    )
    return msgspec.structs.replace(
        found,
        certificates=certificates_of(admin, outcomes, further),
        unrouted=await _unrouted(admin, found),
    )


async def _unrouted(admin: AdminClient, found: Snapshot) -> list[str] | Unknown:
    """Return the topics without a route.

    Name servers are asked after the brokers, so that they know the topics that brokers have
    registered meanwhile.
    """
    own = [it.name for it in known(found.topics) if it.kind is TopicKind.NORMAL]
    if not own:
        return []
    try:
        routed = set(await admin.namesrv.topics())
    except CometError as error:
        return Unknown(str(error))
    return [it for it in own if it not in routed]


async def _places(admin: AdminClient) -> list[Place]:
    info = await admin.namesrv.cluster()
    clusters: dict[str, str] = {}
    for cluster, names in sorted(info.cluster_addr_table.items()):
        clusters |= dict.fromkeys(names, cluster)
    return [
        Place(clusters.get(name, data.cluster), name, broker_id, address)
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]


async def _ask(
    admin: AdminClient, place: Place, history: History, timeout_ms: int, now_ms: int
) -> BrokerAnswers | Unreachable:
    key = _key(place)
    try:
        broker = admin.broker(place.address, name=place.name, timeout_ms=timeout_ms)
        found = await ask(
            broker, place.broker_id, history.memory(place.address), now_ms, timeout_ms
        )
    except CometError as error:
        return unreachable(error, history.since(key, now_ms))
    history.conditions.pop(key, None)
    return found


def _gone(
    outcomes: Sequence[Outcome], history: History, expected: Collection[str], now_ms: int
) -> list[Outcome]:
    """Return the brokers that are not listed although an earlier snapshot found them or they are
    expected.
    """
    places = [place for place, _ in outcomes]
    listed = {(it.name, it.broker_id) for it in places}
    names = {it.name for it in places}
    complete = _complete_groups(outcomes)
    for address, it in list(history.places.items()):
        is_replaced = (it.name, it.broker_id) in listed  # by one at a different address
        is_spare = it.broker_id != MASTER_ID and it.name in complete
        if is_replaced or is_spare or any(place.address == address for place in places):
            del history.places[address]
    gone = list(history.places.values())
    known = {it.name for it in gone} | names
    gone += [Place("", name, MASTER_ID, "") for name in sorted(set(expected) - known)]
    return [
        (
            it,
            Unreachable(Trouble.GONE, "no name server lists it", history.since(_key(it), now_ms)),
        )
        for it in gone
    ]


def _complete_groups(outcomes: Sequence[Outcome]) -> set[str]:
    """Return the broker groups with failover in which every copy is in sync."""
    found = set()
    for place, outcome in outcomes:
        if place.broker_id == MASTER_ID and not isinstance(outcome, Unreachable):
            copies = read_figures(outcome.runtime).copies
            if copies is not None and not copies.missing:
                found.add(place.name)
    return found


def _key(place: Place) -> str:
    return f"answer:{place.name}:{place.broker_id}"


class Watch:
    """Takes snapshots of a cluster on request, and keeps the newest."""

    def __init__(
        self,
        admin: AdminClient,
        *,
        seen: Callable[[Snapshot], object] = lambda _: None,
        further: Callable[[], Sequence[Certificate]] = tuple,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`seen` is called with each snapshot, for example to store its figures; `further`
        returns certificates that the caller knows.
        """
        self.history = History()
        self.snapshot: Snapshot | None = None
        """The newest snapshot; None before the first."""
        self.error: CometError | None = None
        """Why the last attempt yielded no snapshot; None if it succeeded."""
        self._admin = admin
        self._seen = seen
        self._further = further
        self._now_ms = now_ms
        self._begun_ms: int | None = None
        self._looking: asyncio.Lock = asyncio.Lock()

    @property
    def failure(self) -> str:
        """Why the last attempt yielded no snapshot; empty if it succeeded."""
        return "" if self.error is None else str(self.error)

    async def fresh(self, age_ms: int) -> Snapshot:
        """Return a snapshot that is not older, or the last one if none can be taken; raise
        CometError if there never was one.
        """
        is_old = self._begun_ms is None or self._now_ms() - self._begun_ms >= age_ms
        if is_old or self.snapshot is None:
            await self.refresh()
        if self.snapshot is None:
            assert self.error is not None
            raise self.error
        return self.snapshot

    def renew(self) -> None:
        """Let the next call of `fresh` take a snapshot, as after a change."""
        self._begun_ms = None

    async def refresh(self) -> Snapshot | None:
        """Take a snapshot and return it; if no name server answers, return the previous one.

        Concurrent callers share one snapshot.
        """
        was_looking = self._looking.locked()
        async with self._looking:
            if was_looking and self.error is None:
                return self.snapshot
            self._begun_ms = self._now_ms()
            try:
                found = await look(self._admin, history=self.history, further=self._further())
            except CometError as error:
                self.error = error
                return self.snapshot
            self.error = None
            self.snapshot = found
        self._seen(found)
        return found


KEY: Final = "certificates"
"""The key in the answer to GET_BROKER_RUNTIME_INFO."""
SHOWN: Final = "tls.server.certPath"
OURS: Final = "this program"


def certificates_of(
    admin: AdminClient,
    outcomes: Sequence[tuple[Place, BrokerAnswers | Unreachable]],
    further: Sequence[Certificate],
) -> list[Certificate]:
    """Return the certificates of this program, of the name servers and of the brokers, and
    `further`.
    """
    found = [*certificates_at(OURS, admin.expiries_s()), *further]
    for address in admin.namesrv.addresses:
        found += _shown(admin, f"name server {address}", address)
    for place, outcome in outcomes:
        where = f"broker {place.name}:{place.broker_id}"
        told = {} if isinstance(outcome, Unreachable) else _told(outcome.runtime.get(KEY, ""))
        found += [Certificate(where, name, at_ms) for name, at_ms in told.items()]
        if SHOWN not in told:
            found += _shown(admin, where, place.address)
    return found


def certificates_at(where: str, expiries_s: Mapping[str, float]) -> list[Certificate]:
    """Return the certificates of a program; the times are in seconds since 1970, by setting."""
    return [_certificate(where, name, at_s) for name, at_s in expiries_s.items()]


def _shown(admin: AdminClient, where: str, address: str) -> Iterator[Certificate]:
    at_s = admin.peer_expiry_s(address)
    if at_s is not None:
        yield _certificate(where, "", at_s)


def _certificate(where: str, what: str, at_s: float) -> Certificate:
    return Certificate(where, what, int(at_s * 1000))


def _told(text: str) -> dict[str, int]:
    """Parse `SETTING=MS` separated by commas; malformed pairs are left out."""
    pairs = (word.partition("=") for word in text[:1_000].split(","))
    return {name: int(ms) for name, _, ms in pairs if name and ms.isdecimal() and len(ms) < 16}
