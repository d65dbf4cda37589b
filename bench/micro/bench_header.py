# SPDX-License-Identifier: Apache-2.0
"""Time the fast and the general header codec; the modules' docstrings state the budgets."""

from typing import Any

from timing import compare_and_print

from cometmq.remoting import ConstantExt, Reply, Request, RequestCode, Serialization
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header, parse_ext, parse_fixed
from cometmq.remoting.typed_decode import RequestDecoder, convert_ext
from cometmq.remoting.typed_encode import FrameEncoder

JSON, BINARY = int(Serialization.JSON), int(Serialization.ROCKETMQ)
PROPERTIES = "UNIQ_KEY\x017F00000112324E0E2F2A63A316590002\x02WAIT\x01true"
SEND = SendMessageV2("group", "BenchTopic", "TBW102", 4, 3, 0, 1700000000000, 0, PROPERTIES)
PULL = PullMessage("group", "BenchTopic", 3, 123456, 32, 2, 0, 15000, 1700000000000)
REGION = ConstantExt({"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"})
SENT = Reply(header=SendMessageReply("7F0000010000810B00000000000023A5", 3, 123456), ext=REGION)
FOUND = Reply(header=PullMessageReply(0, 123488, 0, 1_000_000), remark="FOUND")
ENCODER = FrameEncoder()
DECODER = RequestDecoder(COMMANDS)


def head_of(serialization: int, code: int, header: Any) -> bytes:
    out: list[Any] = []
    ENCODER.encode_request(out, serialization, 1, Request(code, header))
    ((_, head, _),) = FrameReader().feed(b"".join(out))
    return head


JSON_SEND = head_of(JSON, RequestCode.SEND_MESSAGE_V2, SEND)
BINARY_SEND = head_of(BINARY, RequestCode.SEND_MESSAGE_V2, SEND)
JSON_PULL = head_of(JSON, RequestCode.PULL_MESSAGE, PULL)
BINARY_PULL = head_of(BINARY, RequestCode.PULL_MESSAGE, PULL)


def parse_binary_send() -> object:
    """Decode a send completely, with its struct."""
    *_, position, head = parse_fixed(BINARY_SEND)
    return convert_ext(parse_ext(head, position), SendMessageV2)


def reply(serialization: int, said: Reply) -> None:
    ENCODER.encode_reply([], serialization, 77, said)


def main() -> None:
    compare_and_print(
        {
            "send in, JSON": (lambda: DECODER.decode(JSON, JSON_SEND), 800),
            "send in, JSON, as text": (lambda: decode_header(JSON, JSON_SEND), None),
            "send in, binary": (lambda: DECODER.decode(BINARY, BINARY_SEND), 1500),
            "send in, binary, full parse": (parse_binary_send, None),
            "pull in, JSON": (lambda: DECODER.decode(JSON, JSON_PULL), 800),
            "pull in, binary": (lambda: DECODER.decode(BINARY, BINARY_PULL), None),
            "send's answer, JSON": (lambda: reply(JSON, SENT), 700),
            "send's answer, binary": (lambda: reply(BINARY, SENT), 900),
            "pull's answer, JSON": (lambda: reply(JSON, FOUND), None),
            "pull's answer, binary": (lambda: reply(BINARY, FOUND), None),
            "send out, JSON": (lambda: head_of(JSON, 310, SEND), None),
            "send out, binary": (lambda: head_of(BINARY, 310, SEND), None),
        }
    )


if __name__ == "__main__":
    main()
