# SPDX-License-Identifier: Apache-2.0
"""A request that may wait takes no more memory than it needs."""

from typing import Any

import pytest

from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.errors import ServerError
from cometmq.remoting.transport.bodies import HEAD_BYTES_MAX, NO_BODY_BYTES_MAX, bounded_bodies


def served(code: Code, *, head: int = 0, body: int = 0) -> Reply:
    """Serve a request with a header and a body of these sizes."""
    handlers: dict[int, Any] = {code: lambda _context, _call: OK}
    reply: Reply = bounded_bodies(handlers)[code](
        None, Call(code, None, head=bytes(head), body=bytes(body))
    )
    return reply


@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.QUERY_MESSAGE, Code.END_TRANSACTION])
def test_a_request_without_a_body_brings_no_large_one(code: Code) -> None:
    """A pull that is held for half a minute would keep 16 MiB."""
    assert served(code, body=NO_BODY_BYTES_MAX) is OK
    with pytest.raises(ServerError, match="may have at most 4096 bytes, not 4097"):
        served(code, body=NO_BODY_BYTES_MAX + 1)


def test_long_headers_are_for_messages_and_lists() -> None:
    for code in (Code.PULL_MESSAGE, Code.GET_CONSUMER_RUNNING_INFO, Code.HEART_BEAT):
        assert served(code, head=HEAD_BYTES_MAX) is OK
    for code in (Code.PULL_MESSAGE, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
        with pytest.raises(ServerError, match="header of this request may have at most 65536"):
            served(code, head=HEAD_BYTES_MAX + 1)
    for code in (Code.SEND_MESSAGE_V2, Code.PUT_KV_CONFIG, Code.UPDATE_AND_CREATE_ACL_CONFIG):
        assert served(code, head=1 << 20) is OK
