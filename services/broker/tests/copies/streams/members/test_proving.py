# SPDX-License-Identifier: Apache-2.0
"""Nothing happens on the stream of a group before both sides have proven that they know the key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams import follower, frames
from cometmq.broker.copies.streams.frames import FrameReader, Kind
from cometmq.broker.copies.streams.handshake import (
    Hello,
    Identity,
    LogExtent,
    Refused,
    decode_handshake,
)
from cometmq.broker.copies.streams.proving import Answer, Challenge, Proof
from cometmq.broker.copies.unfit import Unfit
from cometmq.ha.proof import Initiator, Keys, NotProven
from cometmq.ha.record import Copy
from cometmq.store.results import PutResult, PutStatus
from cometmq.testing.broker.member_nodes import CLUSTER, KEY, MemberNode, is_equal
from cometmq.testing.broker.replicas import DEADLINE_S, HOST, until
from cometmq.testing.store.builders import make_message

OTHER = b"another key, which the group does not have"
HUGE = 1 << 62
NAME = f"{CLUSTER}/broker-a"
HELLO = Hello(
    Identity(CLUSTER, "broker-a", Copy(1, "i1")), HUGE, HUGE, 0, LogExtent(0, 0, 4096, ())
)
SECRETS = ('"i0"', '"i1"')


def frame(kind: Kind, body: msgspec.Struct) -> bytes:
    return frames.encode_body(kind, msgspec.json.encode(body))


class Stranger:
    """A program that connects to a member, or is connected to, and has `key`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = b""

    @classmethod
    async def connect(cls, node: MemberNode) -> "Stranger":
        host, _, port = node.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def frame(self, kind: Kind, *, skipped: int = 0) -> memoryview:
        """Return the body of the next frame, after the bytes of an opening."""
        reader = FrameReader(*Kind)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                data = await self.reader.read(1 << 16)
                assert data, f"closed before a {kind.name}"
                self.received += data
                skip, skipped = min(skipped, len(data)), max(0, skipped - len(data))
                for found, body in reader.feed(data[skip:]):
                    assert found is kind
                    return body

    async def prove(self, key: bytes, name: int = 1) -> bytes:
        """Prove a key to the member with ordinal 0; return the ANSWER."""
        one = Initiator((key,), f"{NAME}/{name}", responder=f"{NAME}/0")
        challenge = frame(Kind.CHALLENGE, Challenge("stream", one.name, one.nonce))
        self.writer.write(frames.encode_opening(frames.PROVEN_VERSION) + challenge)
        proof = msgspec.json.decode(await self.frame(Kind.PROOF), type=Proof)
        try:
            answer = one.answer(proof.responder, proof.nonce, proof.mac)
        except NotProven:
            answer = bytes(32)
        self.writer.write(frame(Kind.ANSWER, Answer(answer)))
        return answer

    async def until_closed(self) -> bytes:
        """Return all that was received until the other side closed the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while data := await self.reader.read(1 << 16):
                    self.received += data
            except ConnectionError:
                pass
        self.writer.close()
        return self.received


@asynccontextmanager
async def pair(folder: Path, **options: Any) -> AsyncIterator[tuple[MemberNode, MemberNode]]:
    """Run a master with ordinal 0 and its follower."""
    async with (
        MemberNode(folder, 0, **options) as master,
        MemberNode(folder, 1, **options) as slave,
    ):
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await master.fill(4)
        await until(lambda: is_equal(slave, master))
        yield master, slave


async def send(master: MemberNode) -> PutResult:
    """Send a message and wait for its answer, which needs the follower."""
    results = master.put(make_message(body=b"one"))
    await until(lambda: results)
    return results[0]


# Strangers at the port of a member


async def _hello(stranger: Stranger) -> None:
    stranger.writer.write(frames.encode_opening() + frame(Kind.HELLO, HELLO))


async def _refused(stranger: Stranger) -> None:
    refused = frame(Kind.REFUSED, Refused("stopping", "", HUGE))
    stranger.writer.write(frames.encode_opening() + refused)


async def _hello_instead_of_a_proof(stranger: Stranger) -> None:
    opening = frames.encode_opening(frames.PROVEN_VERSION)
    stranger.writer.write(opening + frame(Kind.HELLO, HELLO))


async def _refused_instead_of_a_proof(stranger: Stranger) -> None:
    opening = frames.encode_opening(frames.PROVEN_VERSION)
    stranger.writer.write(opening + frame(Kind.REFUSED, Refused("stopping", "", HUGE)))


async def _wrong_key(stranger: Stranger) -> None:
    await stranger.prove(OTHER)
    stranger.writer.write(frame(Kind.HELLO, HELLO))


async def _refused_after_the_proof_of_the_member(stranger: Stranger) -> None:
    nonce = bytes(32)
    challenge = frame(Kind.CHALLENGE, Challenge("stream", f"{NAME}/1", nonce))
    stranger.writer.write(frames.encode_opening(frames.PROVEN_VERSION) + challenge)
    await stranger.frame(Kind.PROOF)
    stranger.writer.write(frame(Kind.REFUSED, Refused("stopping", "i1", HUGE)))


async def _reflection(stranger: Stranger) -> None:
    """Send the member's own proof back to it."""
    challenge = frame(Kind.CHALLENGE, Challenge("stream", f"{NAME}/1", bytes(32)))
    stranger.writer.write(frames.encode_opening(frames.PROVEN_VERSION) + challenge)
    proof = msgspec.json.decode(await stranger.frame(Kind.PROOF), type=Proof)
    stranger.writer.write(frame(Kind.ANSWER, Answer(proof.mac)) + frame(Kind.HELLO, HELLO))


async def _wrong_purpose(stranger: Stranger) -> None:
    opening = frames.encode_opening(frames.PROVEN_VERSION)
    challenge = {"purpose": "control", "initiator": f"{NAME}/1", "nonce": "A" * 43 + "="}
    body = msgspec.json.encode(challenge)
    stranger.writer.write(opening + frames.encode_body(Kind.CHALLENGE, body))


async def _large_frame(stranger: Stranger) -> None:
    opening = frames.encode_opening(frames.PROVEN_VERSION)
    stranger.writer.write(opening + b"\x0c\x00\x10\x00\x00" + bytes(1000))


async def _deep_json(stranger: Stranger) -> None:
    opening = frames.encode_opening(frames.PROVEN_VERSION)
    body = b'{"a":' + b"[" * 1_015
    stranger.writer.write(opening + frames.encode_body(Kind.CHALLENGE, body))
    await stranger.frame(Kind.REFUSED)


ATTACKS = [
    _hello, _refused, _hello_instead_of_a_proof, _refused_instead_of_a_proof, _wrong_key,
    _refused_after_the_proof_of_the_member, _reflection, _wrong_purpose, _large_frame,
    _deep_json,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_stranger_changes_and_learns_nothing(
    tmp_path: Path, attack: Callable[[Stranger], Awaitable[None]], victim: int
) -> None:
    async with pair(tmp_path) as nodes:
        master, slave = nodes
        node = nodes[victim]
        (follower,) = master.sender.followers()
        stranger = await Stranger.connect(node)
        await attack(stranger)
        received = await stranger.until_closed()
        assert not any(secret.encode() in received for secret in SECRETS)
        assert [view.copy for view in master.sender.followers()] == [follower.copy]
        assert not master.epochs_seen
        assert not slave.epochs_seen
        assert not master.copies_left
        assert (await send(master)).status is PutStatus.PUT_OK
        assert slave.state.following.connect_count == 1
        assert not len(node.server.openings)


async def test_a_proof_counts_for_one_member(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, _):
        member = await Stranger.connect(master)
        await member.prove(KEY, 2)
        member.writer.write(frame(Kind.HELLO, HELLO))
        refused = decode_handshake(await member.frame(Kind.REFUSED), Refused)
        assert refused.reason == Unfit.UNPROVEN.value
        assert not master.epochs_seen
        await member.until_closed()


async def test_a_stranger_is_reported_once_with_the_setting(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, _):
        for _ in range(3):
            stranger = await Stranger.connect(master)
            await _hello(stranger)
            await stranger.until_closed()
        (event,) = master.log.named("slave.refused")
        assert (event["reason"], str(event["slave"]).partition(":")[0]) == ("unproven", HOST)
        assert "groupKeyFile" in str(event["error"])
        assert "groupKeyFile" in str(event["action"])
        assert master.state.slaves.refused_counts[Unfit.UNPROVEN] == 3


# Strangers that a member connects to


@asynccontextmanager
async def impostor(
    folder: Path, serve: Callable[[Stranger], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[MemberNode, list[Stranger]]]:
    """Let a follower connect to a program that pretends to be its master."""
    seen: list[Stranger] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stranger = Stranger(reader, writer)
        seen.append(stranger)
        await serve(stranger)
        await stranger.until_closed()

    server = await asyncio.start_server(connected, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with MemberNode(folder, 1, **options) as slave:
        slave.member_follower.follow(5, 0, lambda: f"{HOST}:{port}")
        try:
            yield slave, seen
        finally:
            await slave.member_follower.stop()
            server.close()


async def _refuse_with_an_epoch(stranger: Stranger) -> None:
    stranger.writer.write(frame(Kind.REFUSED, Refused("stale-epoch", "\x1b[31mi1", HUGE)))


async def _welcome(stranger: Stranger) -> None:
    master = Identity(CLUSTER, "broker-a", Copy(0, "i0"))
    log = LogExtent(0, 0, 4096, ())
    welcome = {"identity": master, "epoch": 5, "log": log, "start": 0, "digest": {"start": 0}}
    body = msgspec.json.encode({**welcome, "confirmed": 0})
    stranger.writer.write(frames.encode_body(Kind.WELCOME, body))


async def _prove_nothing(stranger: Stranger) -> None:
    stranger.writer.write(frame(Kind.PROOF, Proof(f"{NAME}/0", bytes(32), bytes(32))))


@pytest.mark.parametrize("serve", [_refuse_with_an_epoch, _welcome, _prove_nothing])
async def test_an_impostor_of_the_master_changes_and_learns_nothing(
    tmp_path: Path, serve: Callable[[Stranger], Awaitable[None]]
) -> None:
    async with impostor(tmp_path, serve) as (slave, seen):
        await until(lambda: len(seen) > 2)
        assert not slave.epochs_seen
        assert slave.state.following.state is not FollowState.FOLLOWING
        assert not any(secret.encode() in one.received for one in seen for secret in SECRETS)
        texts = [str(event.facts) for event in slave.log.events]
        assert not any("\x1b" in text for text in texts)
        assert len(slave.log.named("replica.unfit")) <= 1


async def test_a_master_at_a_wrong_address_is_named(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 2) as other, MemberNode(tmp_path, 1) as slave:
        address = other.address
        slave.member_follower.follow(5, 0, lambda: address)
        await until(lambda: slave.log.named("replica.lost"))
        (event, *_) = slave.log.named("replica.lost")
        assert f"it is {NAME}/2, and {NAME}/0 is wanted" in str(event["error"])


# Keys that differ


async def test_keys_are_rotated_without_a_failed_send(tmp_path: Path) -> None:
    steps: list[tuple[Keys, Keys]] = [
        ((KEY, OTHER), (KEY,)),
        ((KEY, OTHER), (KEY, OTHER)),
        ((KEY, OTHER), (OTHER, KEY)),
        ((OTHER, KEY), (OTHER, KEY)),
        ((OTHER, KEY), (OTHER,)),
        ((OTHER,), (OTHER,)),
    ]
    async with pair(tmp_path) as (master, slave):
        for master.keys, slave.keys in steps:
            master.server.tick()
            assert (await send(master)).status is PutStatus.PUT_OK
            await slave.follow_member(master, 1)  # both connect anew, as after a restart
            assert (await send(master)).status is PutStatus.PUT_OK
        assert not slave.log.named("replica.unfit")
        assert not master.log.alarms


async def test_a_stream_ends_when_its_key_is_removed(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        master.keys, slave.keys = (OTHER,), (KEY, OTHER)
        master.server.tick()
        await until(lambda: slave.state.following.connect_count == 2)
        assert (await send(master)).status is PutStatus.PUT_OK
        slave.keys = (KEY,)
        await until(master.sender.followers)
        stale = await Stranger.connect(master)
        await stale.prove(KEY)
        await stale.until_closed()


# Members with and without a key


@pytest.mark.parametrize(
    ("master_keys", "slave_keys"), [((KEY,), ()), ((), (KEY,)), ((KEY,), (KEY,)), ((), ())]
)
async def test_a_key_is_introduced_member_by_member(
    tmp_path: Path, master_keys: Keys, slave_keys: Keys
) -> None:
    async with (
        MemberNode(tmp_path, 0, keys=master_keys, is_key_required=False) as master,
        MemberNode(tmp_path, 1, keys=slave_keys, is_key_required=False) as slave,
    ):
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        assert (await send(master)).status is PutStatus.PUT_OK
        assert bool(master.log.named("follower.unproven")) is (master_keys != slave_keys != (KEY,))
        proven = [stream.proven is not None for stream in master.sender._streams]
        assert proven == [bool(master_keys and slave_keys)]


async def test_a_group_that_requires_the_key_talks_to_nobody_without(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1, keys=()) as slave:
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(lambda: slave.state.following.unfit)
        assert slave.state.following.unfit is Unfit.UNPROVEN
        assert not slave.epochs_seen
        await slave.depose()
        await master.depose()
        await slave.lead(2)
        await master.follow_member(slave, 2)
        await until(lambda: master.state.following.unfit)
        assert master.state.following.unfit is Unfit.UNPROVEN
        assert not master.epochs_seen
        assert not slave.sender.followers()


async def test_a_member_of_the_previous_release_is_admitted_on_request(tmp_path: Path) -> None:
    """It refuses version 2 with its epoch, which is no reason to read the record."""

    async def serve(stranger: Stranger) -> None:
        opening = await stranger.reader.readexactly(frames.OPENING_BYTES)
        version = frames.decode_opening(opening)
        versions.append(version)
        if version != 1:
            refused = Refused("version", "a member speaks version 2 of the stream", HUGE)
            stranger.writer.write(frame(Kind.REFUSED, refused))

    versions: list[int | None] = []
    async with impostor(tmp_path, serve, is_key_required=False) as (slave, seen):
        await until(lambda: b'"i1"' in b"".join(one.received for one in seen))
        assert versions[:2] == [2, 1]
        assert not slave.epochs_seen


# The port under strangers


async def test_strangers_do_not_crowd_out_members(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        strangers = [await Stranger.connect(master) for _ in range(600)]
        opening = frames.encode_opening(frames.PROVEN_VERSION)
        challenge = frame(Kind.CHALLENGE, Challenge("stream", f"{NAME}/1", bytes(32)))
        for number, stranger in enumerate(strangers):
            if not stranger.writer.is_closing():
                stranger.writer.write((b"", opening, opening + challenge)[number % 3])
        await slave.follow_member(master, 1)
        assert (await send(master)).status is PutStatus.PUT_OK
        assert len(master.server.openings) <= 256
        master.clock.advance(5_001)
        slave.clock.advance(5_001)
        master.server.tick()
        await until(lambda: len(master.server.openings) < 256)
        for stranger in strangers:
            stranger.writer.close()


async def test_an_unfinished_proof_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_: Stranger) -> None: ...

    monkeypatch.setattr(follower, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with impostor(tmp_path, silent) as (slave, seen):
        await until(lambda: len(seen) > 2)
        assert not slave.epochs_seen
        assert all(not one.received.count(b"HELLO") for one in seen)
