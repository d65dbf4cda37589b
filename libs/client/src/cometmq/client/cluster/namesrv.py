# SPDX-License-Identifier: Apache-2.0
"""The name servers of a client: it uses one, and the next if that fails or is slow."""

import asyncio
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from ssl import SSLError
from typing import Final, TypeVar

import msgspec

from cometmq.client.arguments import checked_header
from cometmq.client.cluster.routes import checked_route
from cometmq.client.errors import NoNamesrv, WrongServer
from cometmq.client.option_checks import fetch_namesrv_list, parse_addresses
from cometmq.client.settings import NAMESRV_VARIABLE
from cometmq.client.turns import decode_answer
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    RemoteProtocolError,
    RequestCodeNotSupported,
    RequestTimeout,
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


HUNG: Final = " (hung, or another program?)"
BROKERS_BYTES_MAX: Final = 2 << 20
"""Three times what a route of ADDRESSES_MAX brokers has, with the longest names."""
NEXT_MS: Final = 400
"""How long to wait for an answer before the next name server is asked, too. A name server answers
within a few ms, and a client that waits for one that hangs loses its first sends.
"""
OTHERS_MS: Final = 500
"""How long a second name server has to answer: it may be the one that hangs."""
_SUCCESS: Final = (ResponseCode.SUCCESS,)


async def find_addresses(text: str, url: str) -> list[str]:
    """Return the first addresses found: in `text`, in the environment, or at `url`."""
    text = text or os.getenv(NAMESRV_VARIABLE, "")
    if not text and url:
        text = await fetch_namesrv_list(url)
    return parse_addresses(text)


def _reason(address: str, error: TransportError, timeout_ms: int) -> str:
    """Return why a name server failed, with its address unless the error already contains it."""
    if isinstance(error, RequestTimeout) and not error.loop_late_ms:
        return (
            f"{address} accepts connections, but does not answer within {timeout_ms / 1000:g} s"
            f"{HUNG}"
        )
    return str(error) if address in str(error) else f"{address}: {error}"


class Namesrv:
    """Sends requests to name servers, which hold the same data independently of each other."""

    def __init__(
        self, addresses: Sequence[str], remoting: RemotingClient, *, timeout_ms: int
    ) -> None:
        """Start with a random name server, so that clients are spread over all of them."""
        self.addresses: list[str] = []
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self._chosen = 0
        self.replace(addresses)

    @property
    def loop_late_ms(self) -> int:
        """The total delay of the event loop since the client was started."""
        return self._remoting.loop_late_ms

    def replace(self, addresses: Sequence[str]) -> bool:
        """Switch to these name servers; return False if they are already in use."""
        if sorted(addresses) == sorted(self.addresses):
            return False
        self.addresses = list(addresses)
        random.shuffle(self.addresses)
        return True

    def each(self) -> list["Namesrv"]:
        """Return one instance per name server, in the order of their addresses."""
        return [
            Namesrv([address], self._remoting, timeout_ms=self._timeout_ms)
            for address in sorted(self.addresses)
        ]

    async def invoke(
        self,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = _SUCCESS,
    ) -> Response:
        """Send a request that changes nothing to the current name server. If it fails, or has not
        answered within NEXT_MS, ask the next one, too; the first one to answer is used from then
        on.
        """
        header = None if header is None else checked_header(header)
        failures: dict[str, TransportError] = {}
        outcome = await self._first_outcome(
            lambda address: self._ask(address, code, header, body, ok), failures
        )
        if isinstance(outcome, CometError):
            raise outcome
        if outcome is not None:
            return outcome
        reasons = "; ".join(
            _reason(address, refusal, self._timeout_ms) for address, refusal in failures.items()
        )
        has_tls_faults = all(isinstance(it.__cause__, SSLError) for it in failures.values())
        fault = "no name server is reached by TLS" if has_tls_faults else "no name server answers"
        raise NoNamesrv(f"{fault}: {reasons}") from next(reversed(failures.values()), None)

    async def _first_outcome(
        self, ask: Callable[[str], Awaitable[Response]], failures: dict[str, TransportError]
    ) -> Response | CometError | None:
        """Return the first answer or refusal; if all fail, None, with the reasons in `failures`."""
        first, addresses = self._chosen, self.addresses
        left = deque(range(first, first + len(addresses)))
        asked: dict[asyncio.Task[Response | CometError], int] = {}

        async def outcome_of(address: str) -> Response | CometError:
            try:
                return await ask(address)
            except CometError as error:
                return error

        async with asyncio.TaskGroup() as group:
            while left or asked:
                if left:
                    address = addresses[left[0] % len(addresses)]
                    asked[group.create_task(outcome_of(address))] = left.popleft()
                wait_s = NEXT_MS / 1000 if left else None
                await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    chosen, outcome = asked.pop(task), task.result()
                    if isinstance(outcome, TransportError):
                        failures[addresses[chosen % len(addresses)]] = outcome
                        self._chosen = max(self._chosen, chosen + 1)  # others fail meanwhile
                        continue
                    self._chosen = max(self._chosen, chosen)
                    for slow, number in asked.items():
                        slow.cancel()
                        self._remoting.renew(addresses[number % len(addresses)])
                    return outcome
        return None

    async def invoke_all(
        self, code: RequestCode, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> list[Response]:
        """Send a change to every name server; if some fail, raise the first error."""
        answers: list[Response] = []
        failure: CometError | None = None
        for address in self.addresses:
            try:
                answers.append(await self._ask(address, code, header, body))
            except CometError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        header: msgspec.Struct | None,
        body: bytes,
        ok: Collection[int] = _SUCCESS,
        *,
        timeout_ms: int | None = None,
    ) -> Response:
        header = None if header is None else checked_header(header)
        timeout_ms = timeout_ms or self._timeout_ms
        try:
            return await self._remoting.invoke(
                address, code, header, body, timeout_ms=timeout_ms, ok=ok
            )
        except RequestTimeout:  # a lost host never closes its connections
            self._remoting.renew(address)
            raise
        except RequestCodeNotSupported:
            await refuse_broker(self._remoting, address, code, self._timeout_ms)
            raise

    async def _others(
        self, code: RequestCode, header: msgspec.Struct | None = None
    ) -> list[tuple[int, Response]]:
        """Return the answers of the name servers but the current one, each with its index."""
        answers: list[tuple[int, Response]] = []

        async def ask(index: int, address: str) -> None:
            with suppress(CometError):
                response = await self._ask(address, code, header, b"", timeout_ms=OTHERS_MS)
                answers.append((index, response))

        current = self._chosen % len(self.addresses)
        async with asyncio.TaskGroup() as group:
            for index, address in enumerate(self.addresses):
                if index != current:
                    group.create_task(ask(index, address))
        return answers

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, or None if no name server has one.

        A name server knows no topics if the brokers' namesrvAddr lacks it, or shortly after its
        start. Therefore the others are asked, and one that knows the topic is used from then on.
        """
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        header = GetRouteinfoByTopic(topic, accept_standard_json_only=True)
        ok = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        response = await self.invoke(code, header, ok=ok)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            answers = await self._others(code, header)
            if not answers:
                return None
            self._chosen, response = answers[0]
        return checked_route(topic, await self.decode_brokers(TopicRoute, response.body))

    async def cluster(self) -> ClusterInfo:
        """Return the brokers of the first name server that has any."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        response = await self.invoke(code)
        info = await self.decode_brokers(ClusterInfo, response.body)
        if not info.broker_addr_table:
            for index, answer in await self._others(code):
                other = await self.decode_brokers(ClusterInfo, answer.body)
                if other.broker_addr_table:
                    self._chosen = index
                    return other
        return info

    async def decode(self, type_: type[T], body: Buffer) -> T:
        """Decode an answer; raise RemoteProtocolError with the addresses if it is malformed."""
        return await answered(type_, body, self._name)

    async def decode_brokers(self, type_: type[T], body: Buffer) -> T:
        """Decode a route or list of brokers; refuse more than ADDRESSES_MAX brokers can have."""
        if len(body) > BROKERS_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self._name} answers a list of brokers of {len(body):,} bytes, more than"
                f" {BROKERS_BYTES_MAX:,}: check who registers them"
            )
        return await self.decode(type_, body)

    @property
    def _name(self) -> str:
        return f"the name server {';'.join(self.addresses)}"

    async def has_brokers(self) -> bool:
        """Return whether any broker is registered; true if the name server does not answer."""
        try:
            return bool((await self.cluster()).broker_addr_table)
        except CometError:
            return True
