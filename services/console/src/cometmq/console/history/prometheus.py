# SPDX-License-Identifier: Apache-2.0
"""The history of a Prometheus that scrapes the brokers."""

import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Final

import msgspec

from cometmq.client.http_fetch import fetch
from cometmq.console.history.source import Points
from cometmq.console.web.problems import Problem
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker

POINTS_MAX: Final = 300
ANSWER_MAX: Final = 4 << 20
_UNUSABLE: Final = (OSError, HTTPException, *UNREADABLE_JSON, ValueError)
"""Errors of a query or of its answer; ValueError also for values that are not numbers."""

_QUERIES: Final[Mapping[str, str]] = {
    "group:lag": 'sum({{__name__=~"rocketmq_group_(retry)?diff",group={0}}})',
    "group:behind": "max(rocketmq_group_get_latency_by_storetime{{group={0}}})/1000",
    "group:out": "sum(rocketmq_consumer_tps{{group={0}}})",
    "topic:in": "sum(rocketmq_producer_tps{{topic={0}}})",
    "broker:in": "sum(rocketmq_broker_tps{{broker={0}}})",
    "broker:out": "sum(rocketmq_broker_qps{{broker={0}}})",
    "broker:disk": "max(rocketmq_brokeruntime_commitlog_disk_ratio{{broker={0}}})",
    "broker:behind": "max(rocketmq_broker_commitlog_diff{{broker={0}}})",
}


class _Line(msgspec.Struct):
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Line]


class _Answer(msgspec.Struct):
    data: _Data


class Prometheus:
    """Asks a Prometheus on a thread."""

    def __init__(self, url: str, *, timeout_ms: int) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_ms / 1_000
        self._worker = Worker("prometheus", pending_count_max=100)

    async def lines(self, keys: Sequence[str], begin_ms: int, end_ms: int) -> Mapping[str, Points]:
        """Return the points of each key; raise Problem if Prometheus does not answer."""
        ask: Callable[[str], Points] = lambda key: self._line(key, begin_ms, end_ms)  # noqa: E731
        return await self._worker.submit(lambda: {key: ask(key) for key in keys})

    async def close(self) -> None:
        """Wait for open requests."""
        self._worker.close()

    def _line(self, key: str, begin_ms: int, end_ms: int) -> Points:
        query = query_of(key)
        step_s = max(15, (end_ms - begin_ms) // 1_000 // POINTS_MAX)
        arguments = {
            "query": query,
            "start": begin_ms / 1_000,
            "end": end_ms / 1_000,
            "step": step_s,
        }
        url = f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(arguments)}"
        try:
            data = fetch(url, timeout_s=self._timeout_s, bytes_max=ANSWER_MAX)
            found = msgspec.json.decode(data, type=_Answer).data.result
            values = found[0].values if found else []
            first_s, last_s = begin_ms / 1_000 - step_s, end_ms / 1_000 + step_s
            if len(values) > 2 * POINTS_MAX or any(
                not first_s <= at_s <= last_s for at_s, _ in values
            ):
                raise ValueError("it has other times than those that were asked for")
            return points_of(values, step_s)
        except _UNUSABLE as error:
            text = f"the history comes from {self._url}, which fails: {describe(error)}"
            raise Problem(HTTPStatus.BAD_GATEWAY, text) from error


def query_of(key: str) -> str:
    """Return the query for a key of `source`."""
    kind, figure, name = key.split(":", 2)
    if kind == "broker":
        name = name.rpartition(":")[0]
    return _QUERIES[f"{kind}:{figure}"].format(json.dumps(name, ensure_ascii=False))


def points_of(values: Sequence[tuple[float, str]], step_s: int) -> Points:
    """Return the points of a range, with an interruption where samples are missing."""
    found: Points = []
    for at_s, text in values:
        at_ms = int(at_s * 1_000)
        if found and at_ms - found[-1][0] > 2_000 * step_s:
            found.append((found[-1][0] + 1, None))
        found.append((at_ms, float(text)))
    return found
