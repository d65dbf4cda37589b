# SPDX-License-Identifier: Apache-2.0
"""A broker's identity at the name servers, the search for another broker that uses it, and the
state of its registration with each.

Compatibility: a name server lists one address per brokerName and brokerId, and a registration
replaces the address of another broker, running or not. RocketMQ's brokers register without
checking.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from cometmq.broker.registration.bodies import PART_BYTES
from cometmq.broker.role import MASTER_ID
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.route import ClusterInfo
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import CometError, CommandError, ConnectionLost
from cometmq.runtime import properties

TIMEOUT_MS: Final = 1_000


class Invoker(Protocol):
    """The part of a remoting client that registration needs."""

    async def invoke(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        """Send a request and wait for it to succeed; raise a CometError if it fails."""


class Connections(Invoker, Protocol):
    """A remoting client whose connections can be closed."""

    def disconnect(self, address: str, reason: str = "") -> None:
        """Close the connection to an address, if there is one; its pending requests fail."""


class Identity(msgspec.Struct, frozen=True):
    """The identity under which name servers list this broker."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    epoch: int | None = None
    """The epoch of the broker's role in a broker group; None outside one."""

    @property
    def named(self) -> dict[str, Any]:
        """The fields by which requests to name servers name the broker."""
        return {
            "broker_name": self.broker_name,
            "broker_addr": self.broker_addr,
            "cluster_name": self.cluster_name,
            "broker_id": self.broker_id,
        }


async def _listed(client: Invoker, namesrv: str, broker_name: str) -> Mapping[int, str]:
    """Return the addresses that a name server lists under a name, by id; may raise CometError."""
    response = await client.invoke(
        namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=TIMEOUT_MS
    )
    group = decode_json(ClusterInfo, response.body or b"{}").broker_addr_table.get(broker_name)
    return {} if group is None else group.broker_addrs


async def holder_of(client: Invoker, namesrv: str, me: Identity) -> str | None:
    """Return the address that a name server lists under this name and id, or None.

    Raise CometError if the name server does not answer.
    """
    return (await _listed(client, namesrv, me.broker_name)).get(me.broker_id)


async def slave_hosts(
    client: Invoker, namesrvs: Sequence[str], broker_name: str
) -> list[str] | None:
    """Return the hosts of all slaves that name servers list under a name.

    Return None if no name server answers.
    """

    async def asked(namesrv: str) -> list[str] | None:
        try:
            addresses = await _listed(client, namesrv, broker_name)
        except CometError:
            return None
        return [
            address.rpartition(":")[0].strip("[]")
            for number, address in addresses.items()
            if number != MASTER_ID
        ]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asked(namesrv), name="ask-namesrv") for namesrv in namesrvs]
    known = [hosts for task in tasks if (hosts := task.result()) is not None]
    return [host for hosts in known for host in hosts] if known else None


async def is_running(client: Invoker, address: str, broker_name: str) -> bool:
    """Return whether a broker of this name answers at the address.

    The address may now belong to a broker with a different name, as when pods reuse addresses. A
    refusal by access control counts as an answer. So does a closed connection, which is how
    RocketMQ refuses plaintext.
    """
    try:
        response = await client.invoke(
            address, RequestCode.GET_BROKER_CONFIG, timeout_ms=TIMEOUT_MS
        )
    except (CommandError, ConnectionLost):
        return True
    except CometError:
        return False
    try:
        settings = properties.parse(bytes(response.body or b"").decode("utf-8", "replace"))
    except ValueError:
        return True
    return settings.get("brokerName", broker_name) == broker_name


@dataclass(slots=True, eq=False)
class Link:
    """What was registered with one name server, and what went wrong."""

    address: str
    acknowledged: DataVersion | None = None
    asked_s: float | None = None
    """When the pending request was sent, by the loop's clock; None if none is pending."""
    compared_s: float = 0.0
    """When the listed address was last compared with the broker's, by the loop's clock."""
    is_up: bool = False
    is_tried: bool = False
    is_name_checked: bool = False
    holder: str | None = None
    """The address of another running broker with this name and id, because of which this broker
    does not register; None if there is none.
    """
    is_refused: bool = False
    """Whether the last registration was refused because of its epoch."""
    is_role_new: bool = False  # it needs the new role, even if its topics are current
    failed_count: int = 0
    fault: str = ""
    """Why the last attempt to register failed; empty if it did not, or there was none yet."""
    part_bytes: int = PART_BYTES
    """Maximum size of a registration's body; halved when the name server refuses one."""
    listed: Identity | None = None
    """The identity of the last registration that succeeded."""
    watch_ms: int = 0
    """The current interval of `Listing.is_lost`; it grows while registrations are lost again."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Set `asked_s` while a request to the name server is pending."""
        self.asked_s = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.asked_s = None
