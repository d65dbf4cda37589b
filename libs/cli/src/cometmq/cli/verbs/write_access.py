# SPDX-License-Identifier: Apache-2.0
"""Brokers to which producers send nothing, because the routes lack their write permission.

Such a broker answers all requests, so nothing else shows its state. Either an administrator has
called `wipeWritePerm`, which changes the name servers only, or the broker registers its topics
without the permission (`brokerPermission`).
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import NoRoute
from cometmq.remoting.errors import CometError
from cometmq.remoting.integers import whole
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import SELF_TEST_TOPIC
from cometmq.remoting.visible import command


class ReadOnlyBroker(msgspec.Struct, frozen=True):
    """A broker without write permission in the routes."""

    name: str
    cause: str
    remedy: str
    """The command that restores the permission."""

    @property
    def note(self) -> str:
        """The state of the broker, with its cause and the remedy."""
        return (
            f"producers send nothing to broker {self.name}: {self.cause}; to undo this:"
            f" {self.remedy}"
        )


async def read_only_brokers(
    admin: AdminClient, masters: Mapping[str, BrokerAdmin]
) -> dict[str, ReadOnlyBroker]:
    """Return the masters that a name server lists without write permission.

    Every broker has the topic SELF_TEST_TOPIC, which administrators cannot change.
    """
    names: set[str] = set()
    for namesrv in admin.namesrv.each():
        with suppress(CometError):  # the command has printed its answer without this name server
            route = await namesrv.route(SELF_TEST_TOPIC)
            places = [] if route is None else route.queue_datas
            names.update(it.broker_name for it in places if not it.perm & Perm.WRITE)
    return {name: await _read_only(masters[name]) for name in sorted(names & masters.keys())}


async def explained(admin: AdminClient, topic: str, error: NoRoute) -> NoRoute:
    """Return an error that names the brokers without write permission, if they are the cause."""
    try:
        masters = await admin.masters()
        found = await read_only_brokers(admin, masters)
        route = await admin.namesrv.route(topic)
    except CometError:
        return error
    # A send creates a missing topic at any broker.
    names = set(masters) if route is None else {it.broker_name for it in route.queue_datas}
    if not names or not names <= found.keys():
        return error
    causes = "; ".join(found[name].note for name in sorted(names))
    return NoRoute(f"the topic {topic} accepts no messages: {causes}")


async def _read_only(master: BrokerAdmin) -> ReadOnlyBroker:
    permission = ""
    with suppress(CometError):  # only administrators may read settings
        permission = (await master.config()).get("brokerPermission", "")
    number = whole(permission)
    if number is not None and not number & Perm.WRITE:
        return ReadOnlyBroker(
            master.name,
            f"its setting brokerPermission is {permission}",
            command(
                "updateBrokerConfig",
                options=("-b", master.address, "-k", "brokerPermission", "-v", "6"),
            ),
        )
    return ReadOnlyBroker(
        master.name,
        "the name server lists its topics as read-only (wipeWritePerm)",
        command("addWritePerm", options=("-b", master.name)),
    )
