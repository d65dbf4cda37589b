# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send about themselves: registration (103), its end (104), and the question
whether to register again (322).

A large registration is handled in steps, one registration at a time; its connection's next requests
wait. Each step adds some topics to the routes, and the last one stores the data version.
"""

from zlib import crc32

from cometmq.ha.proof import is_registration_proven, new_body_digest
from cometmq.namesrv.admission import admit_registration, stepwise
from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.epochs import Verdict
from cometmq.namesrv.limits import REGISTRATION_BYTES, REGISTRATION_WAIT_S_MAX
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.route_table import Registration
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.registrations import (
    Registered,
    decode_version,
    is_large,
    registration_steps,
)
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import (
    QueryDataVersion,
    QueryDataVersionReply,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
)
from cometmq.remoting.errors import CommandError, RemoteProtocolError, ServerError
from cometmq.remoting.names import ORDER_NAMESPACE
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.remoting.types import Buffer
from cometmq.runtime.incremental import Steps, finish
from cometmq.runtime.limits import address_peer

_HASH_BYTES = 1 << 20
_CRC_MASK = 0x7FFF_FFFF

LATE_REGISTRATIONS_MAX = 3
"""Refusals per epoch that are logged without a warning: a deposed master registers twice a second
until it notices that it is deposed.
"""


def register_broker(namesrv: Namesrv, call: Call[RegisterBroker]) -> Reply | InOrder:
    work = _register(namesrv, call)
    is_removed = namesrv.routes.topics.is_removed(call.header.broker_name)
    if is_removed or is_large(call.body, compressed=call.header.compressed):
        return InOrder(_register_later(namesrv, call, work))
    return finish(work)


async def _register_later(
    namesrv: Namesrv, call: Call[RegisterBroker], work: Steps[Reply]
) -> Reply:
    size, peer, limits = len(call.body), address_peer(call.peer.address), namesrv.limits
    limits.admit(REGISTRATION_BYTES, namesrv.reading_bytes, peer, size)
    namesrv.reading_bytes += size
    try:
        # All brokers register at once when a name server has started, so they may wait longer than
        # other requests, but no longer than until they register again.
        return await stepwise(namesrv, call, work, wait_s_max=REGISTRATION_WAIT_S_MAX)
    finally:
        namesrv.reading_bytes -= size
        limits.release(REGISTRATION_BYTES, peer, size)


def _register(namesrv: Namesrv, call: Call[RegisterBroker]) -> Steps[Reply]:
    header = call.header
    if header.body_crc32 and header.body_crc32 != (yield from _crc32(call.body)):
        raise ServerError(remarks.CRC_MISMATCH)
    digest = (yield from _digest(call.body)) if header.group_proof else b""
    is_proven = _is_proven(namesrv, header, digest)
    _refuse_stale(namesrv, header, is_proven=is_proven)
    claims = _claims(namesrv, header.broker_name)
    body = yield from _registered(call)
    yield from admit_registration(namesrv, call, body)
    if not call.peer.is_open:  # nothing would remove the broker when its connection ends
        raise ServerError("the connection has ended")
    if _claims(namesrv, header.broker_name) != claims:  # another broker registered meanwhile
        is_proven = _is_proven(namesrv, header, digest)
        _refuse_stale(namesrv, header, is_proven=is_proven)
    broker = BrokerId(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
    replaced = namesrv.routes.holder(broker, header.group_epoch)
    is_new = broker.address not in namesrv.routes.live_brokers()
    master = yield from namesrv.routes.registering(
        Registration(
            broker,
            header.ha_server_addr,
            body.data_version,
            body.topics,
            body.filter_servers,
            header.group_epoch,
            is_proven,
        ),
        connection=call.peer,
        now_ms=namesrv.clock.monotonic_ms(),
        keep_ms=namesrv.settings.value.lost_master_keep_ms,
    )
    if is_new:
        namesrv.log.info("broker.registered", **broker._asdict())
    if replaced is not None:
        namesrv.log.warning("broker.address_replaced", **broker._asdict(), replaced=replaced)
    reply = RegisterBrokerReply()
    if master is not None:
        reply = RegisterBrokerReply(master.ha_address, master.address)
    # The queue counts of ordered topics
    return Reply(header=reply, body=namesrv.kv_config.encode_namespace(ORDER_NAMESPACE))


def _claims(namesrv: Namesrv, broker_name: str) -> tuple[int | None, bool]:
    """Return the epoch of a group, and whether a member has proven that it knows the key."""
    epochs = namesrv.routes.epochs
    return epochs.of(broker_name), epochs.is_proven(broker_name)


def _crc32(body: Buffer) -> Steps[int]:
    found, view = 0, memoryview(body)
    for start in range(0, len(view), _HASH_BYTES):
        found = crc32(view[start : start + _HASH_BYTES], found)
        yield
    return found & _CRC_MASK


def _digest(body: Buffer) -> Steps[bytes]:
    digest, view = new_body_digest(), memoryview(body)
    for start in range(0, len(view), _HASH_BYTES):
        digest.update(view[start : start + _HASH_BYTES])
        yield
    return digest.digest()


def _is_proven(
    namesrv: Namesrv, header: RegisterBroker | UnregisterBroker, body_digest: bytes
) -> bool:
    """Return whether the sender has proven that it knows its group's key; raise CommandError if
    there is no valid proof, although one is required.

    A proof is required if the group has a key file of its own, or if a member has sent a proof
    before. With one key file for all groups, a proof is required of registrations with an epoch:
    other brokers have no key.
    """
    keys, name = namesrv.group_keys.of(header.broker_name), header.broker_name
    if not keys:
        return False
    if is_registration_proven(keys, header, body_digest):
        return True
    is_needed = namesrv.group_keys.is_for_one(name) or namesrv.routes.epochs.is_proven(name)
    if is_needed or header.group_epoch is not None:
        given = "none" if header.group_proof is None else "one with another key"
        if namesrv.may_warn("broker.unproven"):
            namesrv.log.warning(
                "broker.unproven", broker_name=name, address=header.broker_addr, proof=given,
                action="give the broker the name server's groupKeyFile",
            )  # fmt: skip
        raise CommandError(
            ResponseCode.NO_PERMISSION,
            f"{remarks.UNPROVEN}: {header.broker_addr} sends {given}: give the brokers of"
            f" {name} a groupKeyFile with the key that the name server has",
        )
    return False


def _refuse_stale(namesrv: Namesrv, header: RegisterBroker, *, is_proven: bool) -> None:
    """Raise CommandError if `Epochs` does not accept the registration.

    A deposed master would replace its successor in the routes. A few such refusals are normal
    during a switchover, when a registration of the old master may already be on its way.
    """
    routes, name = namesrv.routes, header.broker_name
    now_ms, epoch = namesrv.clock.monotonic_ms(), routes.epochs.of(name)
    was_contested = routes.epochs.is_contested(name, now_ms)
    verdict = routes.epochs.judge(name, header.group_epoch, is_proven=is_proven, now_ms=now_ms)
    facts = {
        "broker_name": name, "address": header.broker_addr,
        "epoch": header.group_epoch, "group_epoch": epoch,
    }  # fmt: skip
    if verdict is Verdict.ACCEPTED:
        if routes.epochs.is_contested(name, now_ms) and not was_contested:
            namesrv.log.warning(
                "epoch.contested", **facts,
                action="two brokers claim the group; set groupKeyFile here and at its brokers",
            )  # fmt: skip
        return
    if verdict is Verdict.IMPLAUSIBLE:
        if namesrv.may_warn("epoch.implausible"):
            namesrv.log.warning("epoch.implausible", **facts)
    elif routes.epochs.refusals(name) <= LATE_REGISTRATIONS_MAX:
        namesrv.log.info("broker.deposed", **facts)
    elif namesrv.may_warn("broker.stale"):
        namesrv.log.warning("broker.stale", **facts)
    raise ServerError(
        f"{remarks.STALE_EPOCH}: {header.broker_addr} registers in epoch {header.group_epoch}, but"
        f" the group {name} is in epoch {epoch}",
    )


def unregister_broker(namesrv: Namesrv, call: Call[UnregisterBroker]) -> Reply:
    header = call.header
    _is_proven(namesrv, header, new_body_digest().digest())
    broker = BrokerId(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
    namesrv.routes.unregister(broker)
    namesrv.log.info("broker.unregistered", **broker._asdict())
    return OK


def query_data_version(namesrv: Namesrv, call: Call[QueryDataVersion]) -> Reply:
    try:
        version = decode_version(call.body)
    except RemoteProtocolError as error:
        raise ServerError(str(error)) from error
    changed, known = namesrv.routes.query_data_version(
        call.header.broker_addr,
        version,
        connection=call.peer,
        now_ms=namesrv.clock.monotonic_ms(),
    )
    body = b"" if known is None else encode_json(known)
    return Reply(header=QueryDataVersionReply(changed), body=body)


def _registered(call: Call[RegisterBroker]) -> Steps[Registered]:
    """Decode a registration. A malformed body raises SYSTEM_ERROR, so the connection stays open."""
    if not call.body:
        return Registered(DataVersion(), (), [])
    try:
        return (yield from registration_steps(call.body, compressed=call.header.compressed))
    except RemoteProtocolError as error:
        raise ServerError(str(error)) from error
