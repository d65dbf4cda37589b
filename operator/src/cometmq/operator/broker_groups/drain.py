# SPDX-License-Identifier: Apache-2.0
"""Makes a group that is being deleted read-only, and counts its unconsumed messages."""

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.group_elector import PLAIN, GroupElector
from cometmq.operator.broker_groups.seen import Backlog, Seen
from cometmq.operator.passes import Context
from cometmq.operator.secrets import SecretFault
from cometmq.operator.unconsumed import Quiet, unconsumed
from cometmq.remoting.errors import CometError
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings

READ_ONLY = {"brokerPermission": "4"}


class Drain:
    def __init__(self, context: Context, elector: GroupElector) -> None:
        self._context = context
        self._elector = elector
        self._quiet = Quiet(context.clock.monotonic_ms, context.quiet_ms)

    async def look(self, group: BrokerGroup, seen: Seen) -> Seen:
        """Make the group read-only, and count the unconsumed messages.

        Brokers accept sends from producers that have not yet learnt from the name servers that the
        group is read-only. So a count of 0 is final only once nothing has been stored for a while
        after every broker has become read-only.
        """
        if not group.is_deleting or group.skips_drain or not seen.has_stores:
            return seen
        try:
            await self.refuse_sends(group, range(seen.replicas or 0))
        except CometError as error:
            self._context.log.warning("drain.blocked", group=group.name, error=str(error))
            self._quiet.forget()
            return seen
        accounts, account = group.spec.accounts, None
        try:
            if accounts is not None:
                name = accounts.operator_secret_name
                account = await self._context.secrets.account(group.namespace, name)
        except SecretFault:  # a condition reports it
            return seen
        if seen.record is None:
            return seen
        backlog = await self.backlog(group, seen.record.holder.ordinal, account)
        if backlog is None:
            return seen
        # The count may miss a message that moves meanwhile, for example to a retry topic. The move
        # stores it again, so the end of the log after the count shows it.
        is_quiet = self._quiet.is_quiet("", backlog.end)
        return msgspec.structs.replace(seen, backlog=backlog, is_quiet=is_quiet)

    async def refuse_sends(self, group: BrokerGroup, ordinals: range) -> None:
        """Make the brokers read-only; raise CometError at the end unless all have confirmed."""
        faults: list[CometError] = []
        for ordinal in ordinals:
            try:
                async with self._elector.client(group, ordinal) as it:
                    await it.update_config(READ_ONLY)
            except CometError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    async def backlog(
        self, group: BrokerGroup, master: int, account: SessionCredentials | None
    ) -> Backlog | None:
        """Return the unconsumed messages on the master; None if it does not answer, or refuses
        `account`.
        """
        elector, log = self._elector, self._context.log
        tls = elector.links.get(master, PLAIN).tls or TlsSettings()
        options = ClientOptions(credentials=account, tls=tls)
        try:
            async with AdminClient(
                ";".join(group.spec.name_servers), options=options, log=log
            ) as admin:
                broker = admin.broker(elector.addresses.main(group, master))
                found = {
                    one: (await unconsumed(broker, one)).total() for one in await broker.groups()
                }
                facts = await broker.runtime_info()
        except CometError as error:
            log.warning("backlog.unknown", group=group.name, error=str(error))
            return None
        found["delayed messages"] = _delayed(facts)
        behind = {name: count for name, count in found.items() if count}
        return Backlog(behind, int(facts.get("commitLogMaxOffset", -1)))


def _delayed(info: dict[str, str]) -> int:
    """Return the number of messages waiting in delay levels, as reported in a broker's runtime
    info.
    """
    levels = (
        value.split(",") for key, value in info.items() if key.startswith("scheduleMessageOffset_")
    )
    return sum(max(0, int(end) - int(delivered)) for delivered, end in levels)
