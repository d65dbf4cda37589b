# SPDX-License-Identifier: Apache-2.0
"""Calls and answers of the control API prove that both ends know the group's key."""

import asyncio
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cometmq.control.client import MemberClient
from cometmq.control.controlled import MemberUnproven, Reason, Target
from cometmq.control.methods import METHODS, PROOF_KEY, REASON_KEY, SERVICE
from cometmq.control.server import ControlServer
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha import proof as proofs
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Fence
from cometmq.ha.proof import MAC_BYTES, Caller, Seal, Verifier, fingerprint
from cometmq.remoting.errors import SettingsError
from cometmq.testing.control.each_order import each_order
from cometmq.testing.control.scripted import TARGET

DEADLINE_S = 60
OLD, NEW, WRONG = b"o" * 32, b"n" * 32, b"w" * 32


class Keyed:
    """A member with a control server, and clients, whose keys a test changes."""

    def __init__(self, member):
        self.keys = (OLD,)
        self.is_needed = True
        self.log = Log()
        self.server = ControlServer(
            member, keys=lambda: self.keys, is_proof_needed=lambda: self.is_needed, log=self.log
        )
        self.clients = []

    def client(self, *keys):
        client = MemberClient(f"127.0.0.1:{self.server.port}", TARGET, keys=lambda: keys)
        self.clients.append(client)
        return client


class Log:
    def __init__(self):
        self.events = []

    def info(self, event, /, **_facts):
        self.events.append(event)

    warning = error = debug = info


@pytest.fixture
async def keyed(member):
    keyed = Keyed(member)
    await keyed.server.start("127.0.0.1", 0)
    yield keyed
    for client in keyed.clients:
        await client.close()
    await keyed.server.stop()


async def every_call(client):
    """Return the outcome of each method: None, or the error."""

    async def watched():
        reports = client.watch(silence_ms=DEADLINE_S * 1000)
        await anext(reports)
        await reports.aclose()

    calls = [
        client.status(timeout_ms=60_000), watched(), client.update_config({"a": "b"}),
        *map(client.order, each_order()),
    ]  # fmt: skip
    outcomes: list[MemberUnproven | None] = []
    for call in calls:
        try:
            await call
        except MemberUnproven as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


async def test_every_call_needs_a_proof_and_a_member_s_proof_is_enough(member, keyed):
    for stranger in (keyed.client(), keyed.client(WRONG)):
        for error in await every_call(stranger):
            assert "refuses: the call does not prove that it knows the group's key" in str(error)
    assert member.orders == []
    assert keyed.log.events.count("control.unproven") == 1  # at most one in ten seconds
    assert set(await every_call(keyed.client(OLD))) == {None}
    assert member.orders == list(each_order())


async def test_only_a_wrong_key_is_an_alarm_not_the_first_call_with_the_right_one(keyed):
    for _ in range(4):
        await keyed.client(OLD).status(timeout_ms=60_000)
    assert "control.unproven" not in keyed.log.events
    with pytest.raises(MemberUnproven):
        await keyed.client(WRONG).status(timeout_ms=60_000)
    with pytest.raises(MemberUnproven):
        await keyed.client(WRONG).status(timeout_ms=60_000)
    assert keyed.log.events.count("control.unproven") == 1


async def test_health_checks_need_no_proof(keyed):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{keyed.server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="live"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_client_with_a_key_believes_no_member_without_it(member, server, client):
    keyed = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (OLD,))
    for error in await every_call(keyed):
        assert "does not prove that it knows the group's key" in str(error)
    await keyed.close()


@pytest.mark.parametrize("reason", [*OrderRefusal, Reason.WRONG_MEMBER, Reason.INVALID_CONFIG])
async def test_a_refusal_without_a_proof_is_not_believed(reason):
    """A stranger that listens in place of a member could give reasons, and advice, in its name."""

    class Stranger(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details):
            async def refuse(request, context):
                proof = (PROOF_KEY, b"x" * MAC_BYTES)
                metadata = ((REASON_KEY, reason.value), proof)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "forged", metadata)

            async def refuse_watch(request, context):
                await refuse(request, context)
                yield b""

            if details.method.endswith("WatchStatus"):
                return grpc.unary_stream_rpc_method_handler(refuse_watch)
            return grpc.unary_unary_rpc_method_handler(refuse)

    stranger = grpc.aio.server()
    stranger.add_generic_rpc_handlers([Stranger()])
    port = stranger.add_insecure_port("127.0.0.1:0")
    await stranger.start()
    client = MemberClient(f"127.0.0.1:{port}", TARGET, keys=lambda: (OLD,))
    for error in await every_call(client):
        assert "does not prove that it knows the group's key" in str(error)
        assert "forged" not in str(error)
    await client.close()
    await stranger.stop(0)


async def test_the_refusal_of_a_member_is_believed(member, keyed):
    client = keyed.client(OLD)
    for reason in OrderRefusal:
        member.refusal = OrderRefused(reason, "not now, Müller")
        with pytest.raises(OrderRefused, match=r"^not now, Müller$") as caught:
            await client.order(Fence(9))
        assert caught.value.reason is reason
    with pytest.raises(SettingsError, match=r"^nonsense: unknown setting$"):
        await client.update_config({"nonsense": "1"})


async def test_while_keys_are_introduced_callers_without_one_are_served(member, keyed):
    keyed.is_needed = False
    assert (await keyed.client().status(timeout_ms=60_000)).group_keys == ()
    assert set(await every_call(keyed.client())) == {None}
    assert set(await every_call(keyed.client(OLD))) == {None}
    assert None not in await every_call(keyed.client(WRONG))


async def test_keys_are_rotated_without_a_failed_call(member, keyed):
    old, new = keyed.client(OLD), keyed.client(NEW, OLD)
    for keys in ((OLD, NEW), (NEW, OLD)):
        keyed.keys = keys
        assert set(await every_call(old)) == {None}
        assert set(await every_call(new)) == {None}
    watch = old.watch(interval_ms=100, silence_ms=DEADLINE_S * 1000)
    await anext(watch)
    report = await new.status(timeout_ms=60_000)
    assert report.group_keys == (fingerprint(NEW), fingerprint(OLD))
    keyed.keys = (NEW,)
    with pytest.raises(MemberUnproven, match="the key of this watch was removed"):
        await to_the_end(watch)
    assert None not in await every_call(old)
    assert set(await every_call(new)) == {None}


async def to_the_end(watch):
    async with asyncio.timeout(DEADLINE_S):
        async for _ in watch:
            pass


async def test_a_captured_call_is_worthless(member, keyed):
    client = keyed.client(OLD)
    await client.status(timeout_ms=60_000)
    fence = partial(METHODS["Fence"].encode, pb.Target(group="orders", ordinal=1))
    raw = fence(Fence(9))
    proof, _ = client._caller.prove("Fence", raw) or (b"", None)
    attempts = [
        ("Fence", fence(Fence(10)), False),
        ("Promote", raw, False),
        ("Fence", raw, True),
        ("Fence", raw, False),  # it was used
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{keyed.server.port}") as channel:
        for name, body, is_accepted in attempts:
            call = channel.unary_unary(f"/{SERVICE}/{name}")(body, metadata=((PROOF_KEY, proof),))
            assert (await call.code() is grpc.StatusCode.OK) is is_accepted
    assert member.orders == [Fence(9)]


def proven(verifier, key=OLD, target=TARGET, method="Fence", request=b"request"):
    caller = Caller(lambda: (key,), target)
    caller.challenge = verifier.challenge
    found = caller.prove(method, request)
    assert found is not None
    return found


def test_a_proof_is_for_one_member_and_the_last_two_challenges():
    now_ms = [0]
    verifier = Verifier(lambda: (NEW, OLD), lambda: now_ms[0])
    proof, _ = proven(verifier)
    assert verifier.check(proof, "Fence", Target("orders", 2), b"request") is None
    assert verifier.check(proof, "Fence", Target("bills", 1), b"request") is None
    assert verifier.check(proof[:-1], "Fence", TARGET, b"request") is None
    now_ms[0] += proofs.CHALLENGE_MS
    seal = verifier.check(proof, "Fence", TARGET, b"request")
    assert seal is not None
    assert seal.key == OLD
    late, _ = proven(verifier)
    now_ms[0] += 2 * proofs.CHALLENGE_MS
    verifier.challenge  # noqa: B018
    now_ms[0] += proofs.CHALLENGE_MS
    assert verifier.check(late, "Fence", TARGET, b"request") is None


def test_the_memory_of_used_nonces_is_bounded(monkeypatch):
    monkeypatch.setattr(proofs, "NONCES_MAX", 3)
    verifier = Verifier(lambda: (OLD,), lambda: 0)
    for _ in range(20):
        proof, _ = proven(verifier)
        assert verifier.check(proof, "Fence", TARGET, b"request")
    assert sum(map(len, verifier._used.values())) <= 6


def test_a_seal_fits_one_message_of_one_call():
    def seal():
        return Seal(OLD, "WatchStatus", b"nonce")

    sent = seal()
    first, second = sent.add_to(b"1"), sent.add_to(b"2")
    got = seal()
    assert got.is_intact(first)
    assert got.is_intact(second)
    assert not seal().is_intact(second)
    assert not Seal(OLD, "WatchStatus", b"other").is_intact(first)
    assert not Seal(OLD, "GetStatus", b"nonce").is_intact(first)
    assert not Seal(NEW, "WatchStatus", b"nonce").is_intact(first)
    for broken in (b"", b"1", b"9" + first[1:], first[:-1], first + b"1"):
        assert not seal().is_intact(broken)
    assert pb.MemberStatus.FromString(seal().add_to(b"")) is not None  # old receivers skip it
