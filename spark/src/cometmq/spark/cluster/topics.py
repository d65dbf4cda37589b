# SPDX-License-Identifier: Apache-2.0
"""Resolves the options to queues, using the routes of the name servers."""

import difflib
import http.client
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.client.http_fetch import fetch
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic
from cometmq.remoting.errors import CometError, TransportError
from cometmq.remoting.message.flags import Perm
from cometmq.spark.cluster.connection import BrokerConnection, Closable, LinkSettings
from cometmq.spark.errors import NameServerUnreachable, OptionError, TopicMissing
from cometmq.spark.options.definitions import Options
from cometmq.spark.options.offsets_json import Queue, assigned_from_text
from cometmq.spark.tables.columns import topic_kind

MASTER_ID: Final = 0
Addresses = Mapping[int, str]
"""Addresses of a broker group by broker id."""

_NORMAL: Final = "NORMAL"
_LIST_BYTES_MAX: Final = 64 * 1024
_LIST_TIMEOUT_S: Final = 3.0


class Route(msgspec.Struct, frozen=True):
    """The readable and writable queues of a topic, and the addresses of their brokers."""

    read_queues: tuple[Queue, ...]
    write_queues: tuple[Queue, ...]
    brokers: Mapping[str, Addresses]


class NameServers(Closable):
    """Queries name servers; all hold the same data, so any of them may answer."""

    def __init__(self, options: Options) -> None:
        self._text = options.name_server
        self._settings = LinkSettings.of(options)
        self._attempts = options.fetch_num_retries + 1
        self._pause_s = options.fetch_retry_interval_ms / 1000
        self._connection: BrokerConnection | None = None

    def route(self, topic: str) -> Route | None:
        header = GetRouteinfoByTopic(topic, accept_standard_json_only=True)
        ok = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        answer = self.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, ok=ok)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return route_of(topic, decode_json(TopicRoute, answer.body))

    def brokers(self) -> dict[str, Addresses]:
        answer = self.invoke(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = decode_json(ClusterInfo, answer.body).broker_addr_table
        return {name: dict(broker.broker_addrs) for name, broker in table.items()}

    def topics(self) -> list[str]:
        answer = self.invoke(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_json(TopicList, answer.body).topic_list)

    def invoke(
        self,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        *,
        ok: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> Response:
        """Query the name server that answered last, then the others; retry if none answers."""
        if self._connection is not None:
            try:
                return self._ask(self._connection, code, header, ok)
            except TransportError:
                self.close()
        failures: dict[str, str] = {}
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(self._pause_s)
            for address in addresses_of(self._text):
                try:
                    self._connection = BrokerConnection(address, self._settings)
                    return self._ask(self._connection, code, header, ok)
                except TransportError as error:
                    failures[address] = str(error)
                    self.close()
        raise NameServerUnreachable(f"no name server answers: {'; '.join(failures.values())}")

    def _ask(
        self,
        connection: BrokerConnection,
        code: RequestCode,
        header: msgspec.Struct | None,
        ok: tuple[int, ...],
    ) -> Response:
        answer = connection.invoke(code, header, ok=(*ok, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise OptionError(_not_a_name_server(connection))
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _not_a_name_server(connection: BrokerConnection) -> str:
    """Return the error text for a broker's address in place of a name server's: it names the name
    servers of this broker.
    """
    known = ""
    with suppress(CometError, UnicodeDecodeError):
        text = connection.invoke(RequestCode.GET_BROKER_CONFIG).body.decode()
        lines = (line.partition("=") for line in text.splitlines())
        known = next((value for name, _, value in lines if name == "namesrvAddr"), "").strip()
    advice = f"use `{known}`" if known else "use the address of a name server, `host:9876`"
    return f"option `nameServer`: {connection.address} is a broker, not a name server; {advice}"


def addresses_of(text: str) -> list[str]:
    """Parse `host:port;host:port`, or fetch the list from an HTTP address."""
    if text.startswith(("http://", "https://")):
        text = _fetch(text)
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not addresses:
        raise OptionError("option `nameServer` is missing: set it to `host:port;host:port`")
    return addresses


def route_of(topic: str, data: TopicRoute) -> Route:
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    rows = [row for row in data.queue_datas if row.broker_name in brokers]
    readable = [
        Queue(topic, row.broker_name, queue_id)
        for row in rows
        if row.perm & Perm.READ
        for queue_id in range(row.read_queue_nums)
    ]
    writable = [
        Queue(topic, row.broker_name, queue_id)
        for row in rows
        if row.perm & Perm.WRITE and MASTER_ID in brokers[row.broker_name]
        for queue_id in range(row.write_queue_nums)
    ]
    return Route(tuple(sorted(readable)), tuple(sorted(writable)), brokers)


def find_queues(
    names: NameServers, options: Options, *, must_exist: bool = True
) -> tuple[list[Queue], dict[str, Addresses]]:
    """Resolve the options to queues and the addresses of their brokers.

    Raises TopicMissing for the first topic or queue that does not exist, if `must_exist` is set.
    """
    assigned = (
        assigned_from_text(options.assign, source="option `assign`") if options.assign else []
    )
    queues: list[Queue] = []
    brokers: dict[str, Addresses] = {}
    for topic in _topics(names, options, assigned):
        route = names.route(topic)
        if route is None:
            if must_exist and not options.subscribe_pattern:
                raise TopicMissing(_missing(names, topic))
            continue
        brokers.update(route.brokers)
        queues += route.read_queues
    if assigned:
        _check_assigned(assigned, queues, must_exist=must_exist)
        queues = [queue for queue in assigned if queue in set(queues)]
    return queues, brokers


def subscribed_topics(options: Options) -> list[str]:
    """List the topics named explicitly; `topic` is an alias for `subscribe`."""
    text = options.subscribe or options.topic
    return sorted({name.strip() for name in text.split(",") if name.strip()})


def _topics(names: NameServers, options: Options, assigned: Iterable[Queue]) -> list[str]:
    if options.assign:
        return sorted({queue.topic for queue in assigned})
    if not options.subscribe_pattern:
        return subscribed_topics(options)
    pattern = re.compile(options.subscribe_pattern)
    return [
        topic
        for topic in names.topics()
        if pattern.fullmatch(topic) and (options.include_system or topic_kind(topic) == _NORMAL)
    ]


def _check_assigned(assigned: list[Queue], queues: list[Queue], *, must_exist: bool) -> None:
    missing = sorted(set(assigned) - set(queues))
    if missing and must_exist:
        raise TopicMissing(f"option `assign`: queue {missing[0]} does not exist or is not readable")


def _missing(names: NameServers, topic: str) -> str:
    near = difflib.get_close_matches(topic, names.topics(), n=1, cutoff=0.8)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"topic `{topic}` does not exist{hint}"


def _fetch(url: str) -> str:
    try:
        data = fetch(url, timeout_s=_LIST_TIMEOUT_S, bytes_max=_LIST_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NameServerUnreachable(f"the address server {url} does not answer: {error}") from error
    first, *_ = data.decode("utf-8", "replace").strip().splitlines() or [""]
    return first
