# SPDX-License-Identifier: Apache-2.0
"""Time the access check of one signed send; the budget is in `cometmq/broker/acl/check.py`."""

from typing import Any

from timing import compare_and_print

from cometmq.broker.acl.check import AccessControl
from cometmq.remoting import Call, Request, RequestCode, Serialization
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.signature import SessionCredentials, Signer, signing
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.testing.broker import FakePeer

BUDGET_NS = 10_000
PROPERTIES = "UNIQ_KEY\x017F00000112324E0E2F2A63A316590002\x02WAIT\x01true"
SEND = SendMessageV2("group", "BenchTopic", "TBW102", 4, 3, 0, 1700000000000, 0, PROPERTIES)
BODY = bytes(128)
USER = AclAccount("userKey1", secret_key="userSecret1", topic_perms=["BenchTopic=PUB|SUB"])
CREDENTIALS = SessionCredentials("userKey1", "userSecret1")
SIGNER = Signer(CREDENTIALS.secret_key)
CONTROL = AccessControl(
    Accounts([Account(USER)], version=DataVersion(), versions={}), clock_ms=lambda: 0
)


def signed(serialization: Serialization) -> Call[Any]:
    """Return a signed send, as received by the broker."""
    ext = FrameEncoder().ext(SEND)
    signing(CREDENTIALS)(RequestCode.SEND_MESSAGE_V2, ext, BODY)
    codec = Codec(COMMANDS, serialization=serialization)
    sender, receiver = Connection(codec, FakePeer()), Connection(codec, FakePeer())
    sender.send(Request(RequestCode.SEND_MESSAGE_V2, None, BODY, ext))
    (call,) = receiver.receive(bytes(sender.take()), 0)
    return call


def main() -> None:
    json, binary = signed(Serialization.JSON), signed(Serialization.ROCKETMQ)
    ext = json.ext
    compare_and_print(
        {
            "check of a send, JSON": (lambda: CONTROL.check(None, json), BUDGET_NS),
            "check of a send, binary": (lambda: CONTROL.check(None, binary), BUDGET_NS),
            "of it: header as text, JSON": (lambda: json.ext, None),
            "of it: header as text, binary": (lambda: binary.ext, None),
            "of it: signature": (lambda: SIGNER.has_signed(ext, BODY), None),
        }
    )


if __name__ == "__main__":
    main()
