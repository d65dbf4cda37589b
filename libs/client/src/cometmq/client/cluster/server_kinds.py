# SPDX-License-Identifier: Apache-2.0
"""Tells brokers and name servers apart when one is asked for what only the other does."""

from cometmq.client.errors import WrongServer
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CommandError, RequestCodeNotSupported, TransportError
from cometmq.remoting.transport.client import RemotingClient


async def refuse_broker(remoting: RemotingClient, address: str, timeout_ms: int) -> None:
    """Raise WrongServer if the server at a name server's address is a broker."""
    if await _serves(remoting, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms):
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
        return True  # refused, for example by access control, but known
    return True
