# SPDX-License-Identifier: Apache-2.0
"""Decoders of the other ports: both replication streams, the control API, and HTTP.

Their valid inputs are files in `tests/fuzz/corpus`, one folder for each target.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError
from tests.fuzz.answers import ANSWER_TARGETS
from tests.fuzz.console import CONSOLE_TARGETS
from tests.fuzz.small import SMALL_TARGETS
from tests.fuzz.tables import TABLE_TARGETS

from cometmq.broker.copies.streams import frames, proving
from cometmq.broker.copies.streams.frames import FrameReader, Kind
from cometmq.broker.copies.streams.handshake import Hello, Refused, Welcome, decode_handshake
from cometmq.broker.copies.streams.rocketmq.frames import ReportReader, TransferReader
from cometmq.control.methods import METHODS
from cometmq.control.v1 import control_pb2
from cometmq.peers.paths import FUZZ_CORPUS
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.http.admin_pages import server_of
from cometmq.runtime.http.server import Connection

_BODIES: Final[Mapping[Kind, Callable[[memoryview], Any]]] = {
    Kind.RECORDS: frames.decode_records,
    Kind.CONFIRM: partial(frames.decode, message=frames.Confirm),
    Kind.ACK: partial(frames.decode, message=frames.Report),
    Kind.TABLES_END: frames.decode_tables_end,
    Kind.WANT_BLOCK: partial(frames.decode, message=frames.WantedBlock),
    Kind.BLOCK: frames.decode_block,
    **{
        kind: lambda body, kind=kind: frames.decode_tables(kind, body)  # type: ignore[misc]
        for kind in (Kind.CHANGES, Kind.TABLES)
    },
    **{
        kind: lambda body, type_=type_: decode_handshake(body, type_)  # type: ignore[misc]
        for kind, type_ in (
            (Kind.HELLO, Hello),
            (Kind.WELCOME, Welcome),
            (Kind.REFUSED, Refused),
        )
    },
    **{
        kind: lambda body, type_=type_: decode_handshake(body, type_)  # type: ignore[misc]
        for kind, type_ in (
            (Kind.CHALLENGE, proving.Challenge),
            (Kind.PROOF, proving.Proof),
            (Kind.ANSWER, proving.Answer),
        )
    },
}
_MESSAGES: Final[list[Any]] = sorted(
    [getattr(control_pb2, name) for name in control_pb2.DESCRIPTOR.message_types_by_name]
    + [method.request for method in METHODS.values()],
    key=lambda one: one.DESCRIPTOR.name,
)
_OPENING_BYTES: Final = len(frames.encode_opening())
_loop: Final = asyncio.new_event_loop()
_admin: Final = AdminHttp()


def ha_reports(data: bytes) -> None:
    """Read the reports of a slave of RocketMQ 4.9."""
    reader = ReportReader()
    for part in _parts(data):
        reader.feed(part)


def ha_transfers(data: bytes) -> None:
    """Read the transfers of a master of RocketMQ 4.9."""
    reader, size = TransferReader(), 0
    for part in _parts(data):
        size += sum(len(transfer.data) for transfer in reader.feed(part))
    assert size <= len(data), "a transfer has bytes that were not sent"


def group_stream(data: bytes) -> None:
    """Read the stream between the members of a broker group, with and without an opening."""
    if len(data) >= _OPENING_BYTES and frames.decode_opening(data[:_OPENING_BYTES]) is not None:
        data = data[_OPENING_BYTES:]
    frames.first_frame(data, *Kind)
    reader = FrameReader(*Kind)
    for part in _parts(data):
        for frame in reader.feed(part):
            _BODIES[frame.kind](frame.body)
    assert reader.held_bytes <= len(data), "more is buffered than was sent"


def control_request(data: bytes) -> None:
    """Parse a message of the control API; its first byte chooses the type."""
    message = _MESSAGES[data[0] % len(_MESSAGES) if data else 0]()
    try:
        message.ParseFromString(data[1:])
    except DecodeError as error:
        raise RemoteProtocolError(str(error)) from error
    again = type(message)()
    again.ParseFromString(message.SerializeToString())


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.is_open = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_open = False

    def is_closing(self) -> bool:
        return not self.is_open

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    abort = close
    pause_reading = resume_reading = lambda self: None


def http_request(data: bytes) -> None:
    """Answer the requests of one connection to the HTTP port."""
    server, transport = server_of(_admin), _Transport()
    connection = Connection(server, _loop)
    connection.connection_made(transport)
    for part in _parts(data):
        if part and transport.is_open:
            connection.data_received(part)
    _run(server.state.tasks, timeout_s=0.1)  # some wait for the rest of their request
    connection.connection_lost(None)
    _run(server.state.tasks)
    if not transport.written.startswith(b"HTTP/1.1 200 "):
        raise RemoteProtocolError("no request")


def _run(tasks: set[asyncio.Task[None]], timeout_s: float | None = None) -> None:
    if tasks:
        _loop.run_until_complete(asyncio.wait(tasks, timeout=timeout_s))


FILE_TARGETS: Final = {
    **{
        target.__name__: target
        for target in (ha_reports, ha_transfers, group_stream, control_request, http_request)
    },
    **ANSWER_TARGETS,
    **CONSOLE_TARGETS,
    **SMALL_TARGETS,
    **TABLE_TARGETS,
}
"""The targets whose valid inputs are files."""


def corpus() -> dict[str, list[bytes]]:
    """Return the valid inputs of each target."""
    return {
        name: [path.read_bytes() for path in sorted((FUZZ_CORPUS / name).iterdir())]
        for name in FILE_TARGETS
    }


def _parts(data: bytes) -> tuple[bytes, bytes]:
    cut = data[0] % len(data) if data else 0
    return data[:cut], data[cut:]
