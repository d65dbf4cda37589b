# SPDX-License-Identifier: Apache-2.0
"""Time the encoding of sends and the decoding of pulls in the client.

Compared with the client's processor time per message (`bench_client.py`), these figures show how
much native codecs could gain. They would still create `Message` and `MessageExt`, which are Python
objects.
"""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from timing import compare_and_print

from cometmq.client.clock import wall_ms
from cometmq.client.message import Message, MessageExt, received
from cometmq.client.namespace import NO_NAMESPACE
from cometmq.client.settings import ProducerOptions
from cometmq.client.subscriptions import subscription
from cometmq.client.transfer.outgoing import Outgoing
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Reply, Request
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.ids import UniqueIds
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import decode_records
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.remoting.types import Serialization

BODY = bytes(128)
MESSAGE = Message("T", BODY)
QUEUE = MessageQueue("T", "broker-a", 0)
IDS = UniqueIds(address=bytes((127, 0, 0, 1)), process_id=1, instance=1, clock_ms=wall_ms)
OUTGOING = Outgoing(ProducerOptions(), IDS)
PEER: Any = SimpleNamespace()
CONNECTION = Connection(Codec(COMMANDS), PEER)
INSTANCE: Any = SimpleNamespace(namespace=NO_NAMESPACE, log=NO_LOG)
PULLER = Puller(INSTANCE, "g", PullStyle(32, 15_000, 30_000, has_subscription=False, is_lite=False))
SUBSCRIPTION = subscription("T", version_ms=1)


PREPARED = OUTGOING.prepare(MESSAGE)
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
NEW = NewMessage(
    topic="T", queue_id=0, flag=0, sys_flag=0, born_timestamp=1_700_000_000_000, born_host=HOST,
    store_host=HOST, body=BODY, properties=PREPARED.properties,
)  # fmt: skip
PULL_BODY = b"".join(
    encode_record(NEW, 7 + number, 4_096, 1_700_000_000_001) for number in range(32)
)
ANSWERED = Reply(header=SendMessageReply("7F0000010000810B00000000000023A5", 3, 123456))
DECODED = decode_records(PULL_BODY)
READY: Any = DECODED[0]
READY.properties  # noqa: B018  # parsed once, so that `received` is timed without it


def prepare() -> None:
    """Run `Outgoing.prepare`."""
    OUTGOING.prepare(MESSAGE)


def request() -> Request:
    """Return a send in the form that the sender passes to the connection."""
    made = PREPARED
    header = SendMessageV2(
        "g", "T", "TBW102", 4, 0, made.sys_flag, 1_700_000_000_000, made.flag, made.properties
    )
    return Request(RequestCode.SEND_MESSAGE_V2, header, made.body)


def encode() -> None:
    ENCODER.encode_request([], JSON, 7, request())


def exchange() -> None:
    """Encode a send and decode its answer, as a connection does."""
    opaque = CONNECTION.invoke(request(), deadline_ms=1, done=lambda _: None)
    CONNECTION.take()
    out: list[Any] = []
    ENCODER.encode_reply(out, JSON, opaque, ANSWERED)
    CONNECTION.receive(b"".join(out), 0)


JSON = int(Serialization.JSON)
ENCODER = FrameEncoder()


def answer() -> None:
    """Encode the answer, which is the broker's share of `exchange`."""
    out: list[Any] = []
    ENCODER.encode_reply(out, JSON, 7, ANSWERED)
    b"".join(out)


def decode() -> list[MessageExt]:
    """Decode the answer to a pull into messages."""
    pulled = Pulled(PullStatus.FOUND, [], 39, 0, 100)
    step = PULLER._decode(PULL_BODY, 32, QUEUE, 0, SUBSCRIPTION, pulled)  # noqa: SLF001  # the step
    with suppress(StopIteration):  # it does not wait for small bodies
        step.send(None)
    return pulled.messages


def create() -> MessageExt:
    """Create a message whose fields are already known."""
    return MessageExt(
        "T", BODY, None, (), {}, "id", "offset id", QUEUE, 7, 4_096, 0, 0, 0, 1, "h", 2, "h"
    )


def main() -> None:
    """Print one line per operation; the figures for pulls cover 32 messages."""
    compare_and_print(
        {
            "send: prepare": (prepare, 5_000),
            "send: encode": (encode, None),
            "send: encode, take its answer": (exchange, None),
            "  of which the broker's part": (answer, None),
            "pull: 32 records": (lambda: decode_records(PULL_BODY), None),
            "pull: 32 messages": (decode, None),
            "  one message from its record": (lambda: received(READY, "broker-a"), None),
            "  one message from its fields": (create, None),
        }
    )


if __name__ == "__main__":
    main()
