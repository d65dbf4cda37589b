# SPDX-License-Identifier: Apache-2.0
"""Detects a broker at a name server's address, the reverse, and answers of any other server."""

from typing import Final, TypeVar

from cometmq.client.decoding import decode_answer
from cometmq.client.errors import WrongServer
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import (
    CommandError,
    RemoteProtocolError,
    RequestCodeNotSupported,
    TransportError,
)
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.types import Buffer

T = TypeVar("T")

ROUTES: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
"""Requests that name servers of every version of RocketMQ serve, and ours too."""


async def answered(type_: type[T], body: Buffer, server: str) -> T:
    """Decode the body of an answer; raise RemoteProtocolError that names the server."""
    try:
        return await decode_answer(type_, body)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"{server} gives an answer that RocketMQ's servers do not give, so it is another"
            f" program, or broken: {error}"
        ) from error


async def refuse_broker(
    remoting: RemotingClient, address: str, code: RequestCode, timeout_ms: int
) -> None:
    """Raise WrongServer if a server that does not support `code` is a broker.

    Every name server supports the codes in ROUTES. For any other code, the server is first asked
    for its runtime statistics, which only brokers have.
    """
    if code in ROUTES or await _serves(
        remoting, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms
    ):
        raise WrongServer(
            f"{address} is a broker, not a name server: give the address of a name server,"
            " by default port 9876"
        )


async def refuse_namesrv(remoting: RemotingClient, address: str, timeout_ms: int) -> None:
    """Raise WrongServer if the server at a broker's address is a name server."""
    if await _serves(remoting, address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms):
        raise WrongServer(
            f"{address} is a name server, not a broker: give the address of a broker,"
            " by default port 10911"
        )


async def _serves(
    remoting: RemotingClient, address: str, code: RequestCode, timeout_ms: int
) -> bool:
    try:
        await remoting.invoke(address, code, timeout_ms=timeout_ms)
    except (RequestCodeNotSupported, TransportError):
        return False
    except CommandError:
        return True  # the server refused, for example by access control, but it knows the request
    return True
