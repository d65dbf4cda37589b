# SPDX-License-Identifier: Apache-2.0
"""Finds, describes, checks and ends open transactions on CometMQ's and RocketMQ's brokers."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import HalfMessage, HalfState
from cometmq.client.errors import BrokerMissing, ClientError, InvalidArgument
from cometmq.insight import message_json, times
from cometmq.insight.words import command
from cometmq.remoting.errors import NO_ANSWER, RequestCodeNotSupported, TopicNotExist
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey


async def masters_of(admin: AdminClient, name: str | None) -> list[BrokerAdmin]:
    """Return one master by its name, or all; raise BrokerMissing if there is none of this name."""
    masters = await admin.masters()
    if name is None:
        return list(masters.values())
    if name not in masters:
        known = ", ".join(masters)
        raise BrokerMissing(f"there is no master {name}; the masters are: {known}")
    return [masters[name]]


async def open_at(admin: AdminClient, master: BrokerAdmin) -> AsyncIterator[HalfMessage]:
    """Yield the open transactions of a broker; none if it does not answer."""
    try:
        async for half in master.open_transactions():
            yield half
    except NO_ANSWER as error:
        admin.unreachable(master, error)


async def find_transaction(admin: AdminClient, transaction: str) -> tuple[BrokerAdmin, HalfMessage]:
    """Return a half message by its position, or one that has not ended by its message id; raise
    InvalidArgument, or ClientError if there is none.
    """
    name, colon, offset = transaction.rpartition(":")
    if colon:
        number = whole(offset)
        if not name or number is None:
            raise InvalidArgument(f"{transaction} is neither a message id nor BROKER:OFFSET")
        return await half_at(admin, name, number)
    masters = await masters_of(admin, None)
    for master in masters:
        async for half in open_at(admin, master):
            if half.message.message_id == transaction:
                return master, half
    for master, halves in await admin.ask_each(masters, lambda it: it.halves_with_id(transaction)):
        for half in halves:
            if await master.state(half) is not HalfState.ENDED:
                return master, half
    raise ClientError(
        f"no open transaction has the id {transaction}: it has ended, or the id is wrong; if it was"
        f" committed, its message is found by"
        f" {command('message show', transaction, options=('-t', 'TOPIC'))}"
    )


async def half_at(admin: AdminClient, name: str, offset: int) -> tuple[BrokerAdmin, HalfMessage]:
    """Return a half message by its position; raise ClientError if there is none."""
    (master,) = await masters_of(admin, name)
    try:
        half = await master.half_message(offset)
    except TopicNotExist:  # the broker has never had a transaction
        half = None
    if half is None:
        raise ClientError(
            f"{name} has no half message at the offset {offset}: it never had one, or it has"
            " deleted it with old messages; cometmq txn list shows the open transactions"
        )
    return master, half


async def check_now(admin: AdminClient, transaction: str) -> dict[str, str | bool | None]:
    """Make the broker ask a connected producer now; return whether the transaction has ended, and
    which producer was asked (None if none is connected).
    """
    master, half = await find_transaction(admin, transaction)
    if await master.state(half) is HalfState.SET_ASIDE:
        raise ClientError(
            f"the transaction {transaction} was set aside, so it is checked no more;"
            f" {command('txn resolve', transaction)} ends it"
        )
    try:
        reply = await master.ask_transaction_state(half)
    except RequestCodeNotSupported as error:
        raise ClientError(
            f"{half.broker} is a RocketMQ broker: it makes its checks by itself, not on request"
        ) from error
    return {
        "transaction": half.message.message_id,
        "group": half.group,
        "ended": reply.is_ended,
        "asked": reply.producer_address,
    }


async def end_undecided(admin: AdminClient, transaction: str, *, commit: bool) -> HalfMessage:
    """End a transaction, open or set aside, in place of its producer; raise ClientError if it has
    ended.
    """
    master, half = await find_transaction(admin, transaction)
    if await master.state(half) is HalfState.ENDED:
        raise ClientError(f"the transaction {transaction} has already ended")
    await master.end_transaction(half, commit=commit)
    return half


def asked_by_rocketmq(half: HalfMessage) -> int:
    """Return how often a RocketMQ broker has asked about a transaction, according to a property; 0
    if it is missing or malformed.
    """
    return whole(half.message.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "")) or 0


def facts_of(half: HalfMessage, state: HalfState) -> dict[str, Any]:
    """Return the fields of a transaction for JSON."""
    message = half.message
    described: dict[str, Any] = msgspec.json.decode(message_json.render(message))
    return {
        "transaction": message.message_id,
        "open": state is HalfState.OPEN,
        "state": state.value,
        "half": f"{half.broker}:{half.offset}",
        "group": half.group,
        "topic": half.topic,
        "queue_id": half.queue_id,
        "tag": message.tag,
        "keys": described.get("keys", []),
        "properties": described.get("properties", {}),
        "stored": times.shown(message.store_timestamp),
        "producer": message.born_host,
        "asked_by_rocketmq": asked_by_rocketmq(half),
        "immunity_seconds": message.properties.get(PropertyKey.CHECK_IMMUNITY_TIME_IN_SECONDS),
        "offset_message_id": message.offset_message_id,
        **{name: described[name] for name in ("body", "body_base64") if name in described},
    }
