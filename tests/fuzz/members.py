# SPDX-License-Identifier: Apache-2.0
"""Sends hostile input to the ports of a broker group's members: their stream and the control API.

The group has a key. Some input comes from strangers, and some from a program that has proven the
key, so that it reaches the decoders behind the proof. None of it may change the group: its master,
epoch and in-sync set stay, and sends are acknowledged.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import msgspec
from tests.fuzz.cost import Worst
from tests.fuzz.decoders import say
from tests.fuzz.mutate import mutated
from tests.fuzz.streams import corpus

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import Kind, Report, WantedBlock
from cometmq.broker.copies.streams.handshake import Hello, Identity, LogExtent
from cometmq.broker.copies.streams.proving import Answer, Challenge, Proof
from cometmq.control.controlled import Target
from cometmq.control.methods import CHALLENGE_KEY, METHODS, OTHERS, PROOF_KEY, SERVICE
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.proof import Caller, Initiator, NotProven
from cometmq.ha.record import Copy
from cometmq.peers.paths import FUZZ_CORPUS
from cometmq.peers.ports import HOST, free_port
from cometmq.testing.broker.broker_groups import BrokerGroup

COUNT: Final = 2
CLUSTER: Final = "DefaultCluster"
STRANGER: Final = 7
"""The ordinal of the program that has the key but is no member."""
CALLS: Final = (*OTHERS, *METHODS)
HARMLESS: Final = ("GetStatus", "WatchStatus")
"""Calls that a program with the key may make without changing the group."""
CALL_S_MAX: Final = 10.0
READ_S: Final = 0.02
COST_MS_MAX: Final = 2_000
CHECK_EVERY: Final = 50
EXPECTED_ERRORS: Final = frozenset({"slave.refused"})  # its operator must act


async def fuzz_members(folder: Path, *, inputs: int, seed: int) -> list[str]:
    """Fuzz the members of a group; return the faults."""
    return await _Members(folder, Random(f"{seed}:members")).run(inputs)


class _Members:
    def __init__(self, folder: Path, random: Random) -> None:
        self._group = BrokerGroup(folder, COUNT)
        self._random = random
        self._controls = [free_port() for _ in range(COUNT)]
        self._worst = Worst()
        self._problems: list[str] = []
        self._corpus = corpus()
        self._http2 = (FUZZ_CORPUS / "control_port" / "connection").read_bytes()

    async def run(self, inputs: int) -> list[str]:
        loop, group = asyncio.get_running_loop(), self._group
        loop.set_exception_handler(lambda _, context: self._problems.append(f"group: {context}"))
        try:
            for ordinal, port in enumerate(self._controls):
                group.change_settings(controlPort=str(port))
                await group.start(ordinal)
            await group.until_master()
            await group.until_in_sync(*range(COUNT))
            await self._attack(inputs)
        finally:
            for ordinal in tuple(group.apps):
                await group.stop(ordinal)
            loop.set_exception_handler(None)
        for number, log in enumerate(group.logs):
            errors = [event for event in log.errors if event.name not in EXPECTED_ERRORS]
            self._problems += [f"member {number} logged {event}" for event in errors[:10]]
        return self._problems

    async def _attack(self, inputs: int) -> None:
        before, began_s = self._state(), time.monotonic()
        async with grpc.aio.insecure_channel(f"{HOST}:{self._controls[0]}") as channel:
            work: Sequence[Callable[[], Any]] = (
                self._stream_as_stranger,
                self._stream_with_key,
                self._raw_control,
                lambda: self._call(channel, is_proven=False),
                lambda: self._call(channel, is_proven=True),
            )
            for number in range(inputs):
                await work[number % len(work)]()
                if number % CHECK_EVERY == 0:
                    await self._check_send(number)
        await self._check_send(inputs)
        if self._state() != before:
            self._problems.append(f"the group changed from {before} to {self._state()}")
        elapsed_s = time.monotonic() - began_s
        say(f"members: {inputs} hostile inputs to stream and control ports in {elapsed_s:.0f} s")
        say(f"members: slowest inputs: {self._worst}")
        self._problems += [
            f"members: an input takes too long: {cost}"
            for cost in self._worst.costs()
            if cost.elapsed_ms > COST_MS_MAX
        ]

    def _state(self) -> tuple[Any, ...]:
        record = self._group.record
        return self._group.master, record.epoch, record.in_sync

    async def _check_send(self, number: int) -> None:
        master = self._group.master
        if master is None:
            self._problems.append(f"the group has no master after input {number}")
            return
        async with self._group.client(master) as client:
            answer = await client.send(b"good")
        if answer.code:
            self._problems.append(f"a send is answered with {answer.code} after input {number}")

    # The stream

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._group.address(self._random.randrange(COUNT))
        host, _, port = address.rpartition(":")
        return await asyncio.open_connection(host, int(port) + 1)  # the default haListenPort

    async def _stream_as_stranger(self) -> None:
        reader, writer = await self._connect()
        data = mutated(self._random, self._corpus["group_stream"])
        await self._send(reader, writer, data, "stream")

    async def _stream_with_key(self) -> None:
        reader, writer = await self._connect()
        with suppress(NotProven, ConnectionError, asyncio.IncompleteReadError):
            await self._prove(reader, writer)
            await self._send(reader, writer, self._proven_input(), "proven stream")
        writer.transport.abort()

    def _proven_input(self) -> bytes:
        """Return what may follow a proof: a valid opening of a follower, or a mutated one."""
        epoch, random = self._group.record.epoch, self._random
        identity = Identity(CLUSTER, self._group.group.name, Copy(STRANGER, "fuzz"))
        file_size = 1 << 20
        hello = Hello(
            identity, epoch, epoch, self._group.master or 0, LogExtent(0, 0, file_size, ())
        )
        greeting = frames.encode_body(Kind.HELLO, msgspec.json.encode(hello))
        later = [
            greeting + frames.encode(Report(epoch, 0, -1, 0)),
            greeting + frames.encode(WantedBlock(0, 4096)),
            greeting + frames.encode_block(0, random.randbytes(100)),
            *self._corpus["group_stream"],
        ]
        return mutated(random, later)

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, ports = f"{CLUSTER}/{self._group.group.name}", self._group
        peer = writer.get_extra_info("peername")[1] - 1
        ordinal = next(n for n in range(COUNT) if ports.address(n) == f"{HOST}:{peer}")
        one = Initiator(self._group.keys(), f"{name}/{STRANGER}", responder=f"{name}/{ordinal}")
        challenge = msgspec.json.encode(Challenge("stream", one.name, one.nonce))
        opening = frames.encode_opening(frames.PROVEN_VERSION)
        writer.write(opening + frames.encode_body(Kind.CHALLENGE, challenge))
        received = b""
        async with asyncio.timeout(CALL_S_MAX):
            while (found := frames.first_frame(received, Kind.PROOF, Kind.REFUSED)) is None:
                data = await reader.read(1 << 16)
                if not data:
                    raise ConnectionError("closed before the proof")
                received += data
        if found[0].kind is Kind.REFUSED:
            raise ConnectionError("refused")  # a slave serves no stream
        proof = msgspec.json.decode(found[0].body, type=Proof)
        answer = one.answer(proof.responder, proof.nonce, proof.mac)
        writer.write(frames.encode_body(Kind.ANSWER, msgspec.json.encode(Answer(answer))))

    async def _send(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        data: bytes,
        name: str,
    ) -> None:
        """Send in two parts, and note how long the member takes to refuse."""
        cut, began_s = self._random.randint(0, len(data)), time.perf_counter()
        with suppress(ConnectionError):
            for part in (data[:cut], data[cut:]):
                writer.write(part)
                await writer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await reader.read()
                    self._worst.note_input(name, began_s, data)
        writer.transport.abort()

    # The control API

    async def _raw_control(self) -> None:
        port = self._controls[self._random.randrange(COUNT)]
        reader, writer = await asyncio.open_connection(HOST, port)
        await self._send(reader, writer, mutated(self._random, [self._http2]), "raw control")

    async def _call(self, channel: grpc.aio.Channel, *, is_proven: bool) -> None:
        random = self._random
        method = random.choice(HARMLESS if is_proven else CALLS)
        target = Target(self._group.group.name, 0)
        data = mutated(random, [one[1:] for one in self._corpus["control_request"]])
        if random.random() < 0.5:
            known = pb.GetStatusRequest(target=pb.Target(group=target.group, ordinal=0))
            data = mutated(random, [known.SerializeToString()])
        caller = Caller(self._group.keys, target)
        began_s = time.perf_counter()
        metadata: Mapping[str, bytes] = {PROOF_KEY: random.randbytes(random.choice((0, 32, 64)))}
        for _ in range(3 if is_proven else 1):
            if is_proven:
                found = caller.prove(method, data)
                assert found is not None
                metadata = {PROOF_KEY: found[0]}
            challenge = await self._answered(channel, method, data, tuple(metadata.items()))
            if challenge is None:
                break
            caller.challenge = challenge
        self._worst.note_input(f"control {method}", began_s, data)

    async def _answered(
        self, channel: grpc.aio.Channel, method: str, data: bytes, metadata: Any
    ) -> bytes | None:
        """Make a call; return the challenge of its refusal, if it has one."""
        path = f"/{SERVICE}/{method}"
        try:
            if method == "WatchStatus":
                call = channel.unary_stream(path)(data, metadata=metadata, timeout=CALL_S_MAX)
                await call.read()
                call.cancel()
            else:
                await channel.unary_unary(path)(data, metadata=metadata, timeout=CALL_S_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN):
                self._problems.append(f"{method} is answered with {error.code()} {data[:200]!r}")
            found = dict(error.trailing_metadata() or ()).get(CHALLENGE_KEY)
            return found if isinstance(found, bytes) else None
        return None
