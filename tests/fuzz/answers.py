# SPDX-License-Identifier: Apache-2.0
"""Decoders of what programs outside the suite send: etcd and the Kubernetes API as answers to
brokers, electors and the operator, assistants as lines to `cometmq mcp`.

An input of answers has the bytes of one connection after the other, separated by SEPARATOR.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx2
from httpcore2 import AsyncMockBackend, AsyncMockStream, AsyncNetworkStream, ConnectError
from mcp_types import CallToolRequestParams, JSONRPCRequest
from mcp_types.jsonrpc import jsonrpc_message_adapter

from cometmq.cli.mcp.server import CHANGING, READING, _answer, _refused, refusal_of
from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.places.http import HttpClient, HttpError
from cometmq.ha.places.kubernetes import Api, KubernetesRecord
from cometmq.ha.port import Answer, Outcome, RecordUnreachable
from cometmq.ha.record import Copy, Record, RecordDamaged, Versioned
from cometmq.operator.api import ApiRefused, ApiServer, ApiUnreachable, KubeApi
from cometmq.remoting.errors import CometError, RemoteProtocolError

SEPARATOR: Final = b"\n====\n"
_RECORD: Final = Record("uid", "group", 1, Copy(0, "a"), (Copy(0, "a"),))
_BASE: Final = Versioned(_RECORD, "uid/1")
_TOOLS: Final = {tool.name: tool for tool in (*READING, *CHANGING)}
_loop: Final = asyncio.new_event_loop()


class _Answers(AsyncMockBackend):
    """Gives each connection the next of some answers, until the server is gone."""

    def __init__(self, data: bytes) -> None:
        super().__init__([])
        self._answers = iter(data.split(SEPARATOR))

    async def connect_tcp(self, *_args: Any, **_options: Any) -> AsyncNetworkStream:
        data = next(self._answers, None)
        if data is None:
            raise ConnectError("the server is gone")
        return AsyncMockStream([data])


def _answering(data: bytes) -> HttpClient:
    """Return a client of a server that answers with given bytes, whatever it is asked."""
    return HttpClient("127.0.0.1", 1, backend=_Answers(data))


def etcd_answer(data: bytes) -> None:
    """Read and write a record in etcd, with a login."""

    def record() -> EtcdRecord:
        made = EtcdRecord(["127.0.0.1:1"], "key", login=("user", "secret"))
        made._clients = [_answering(data)]
        return made

    _use(
        lambda: record().read(),
        lambda: _written(record().replace(_BASE, _RECORD)),
        lambda: _written(record().create(_RECORD)),
    )


def lease_answer(data: bytes) -> None:
    """Read, watch and write a record in a Lease."""

    def record() -> KubernetesRecord:
        return KubernetesRecord(Api(_answering(data), lambda: "token"), "default", "group")

    _use(
        lambda: record().read(),
        lambda: _all(record()._watch_once()),
        lambda: _written(record().replace(_BASE, _RECORD)),
        lambda: _written(record().create(_RECORD)),
    )


def operator_answer(data: bytes) -> None:
    """Read what the API server answers to the operator."""

    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"[1-5][0-9]{2}", head)
    headers = {"Content-Type": "application/json"} if b"json" in head else {}
    response = httpx2.Response(int(found[0]) if found else 200, content=body, headers=headers)
    api = KubeApi(
        ApiServer(host="api", port=1, ca=None, token=Path(os.devnull)),
        httpx2.MockTransport(lambda _: response),
    )
    labels = {"a": "b"}
    service: Any = {"kind": "Service", "metadata": {"namespace": "default", "name": "name"}}
    _use(
        lambda: api.get("Pod", "default", "name"),
        lambda: api.list("Pod", "default", labels),
        lambda: api.create(service),
        lambda: api.delete("Service", "default", "name"),
    )


def mcp_line(data: bytes) -> None:
    """Read a line that an assistant sends, and the call of a tool in it."""
    line = data.replace(b"\n", b" ")
    refusal = refusal_of(line)
    if refusal is not None:
        raise RemoteProtocolError(refusal.message.model_dump_json())
    message = jsonrpc_message_adapter.validate_json(line.decode(), by_name=False)
    if not isinstance(message, JSONRPCRequest) or message.method != "tools/call":
        return
    try:
        wanted = CallToolRequestParams.model_validate(message.params or {})
    except ValueError as error:  # the SDK answers with the reason
        raise RemoteProtocolError("no call of a tool") from error
    try:
        _run(_answer(_session, _TOOLS, wanted))
    except CometError as error:
        _refused(error).model_dump_json()
        raise RemoteProtocolError("the call is refused") from error


class _NoCluster:
    """Stands for the session and its clients: every use of them fails as an absent cluster does."""

    def __getattr__(self, name: str) -> Any:
        raise RemoteProtocolError("there is no cluster")


_session: Final[Any] = _NoCluster()


def _use(*calls: Callable[[], Awaitable[Any]]) -> None:
    """Make each call; raise RemoteProtocolError if all of them are refused."""
    reasons = []
    for call in calls:
        try:
            _run(call())
        except (HttpError, RecordUnreachable, RecordDamaged, ApiRefused, ApiUnreachable) as error:
            reasons.append(str(error))
    assert all(reason.strip() for reason in reasons), "a refusal without a reason"
    if len(reasons) == len(calls):
        raise RemoteProtocolError(reasons[-1])


async def _written(write: Awaitable[Outcome]) -> None:
    outcome = await write
    if outcome.answer is Answer.UNKNOWN:
        raise RecordUnreachable(outcome.reason)


async def _all(events: Any) -> None:
    async for _ in events:
        pass


def _run(work: Awaitable[Any]) -> Any:
    return _loop.run_until_complete(work)


ANSWER_TARGETS: Final = {
    target.__name__: target for target in (etcd_answer, lease_answer, operator_answer, mcp_line)
}
