# SPDX-License-Identifier: Apache-2.0
"""The `grpc.health.v1` services of a member: `live`, `startup`, `ready` (or the empty name)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from cometmq.control.admission import Caller, Streams, address_of
from cometmq.control.controlled import Report
from cometmq.ha.role import Role

WATCH_MS: Final = 250


def is_ready(report: Report) -> bool:
    """Return whether a member provides the service that its role requires."""
    status = report.status
    return status.role.is_serving and not report.fault and not status.has_lost_master


CHECKS: Final[Mapping[str, Callable[[Report], bool]]] = {
    "live": lambda _report: True,  # the answer itself shows that the event loop runs
    "startup": lambda report: report.status.role is not Role.RECOVERING,
    "ready": is_ready,
    "": is_ready,
}
"""Service name -> whether it is serving."""


class Health:
    """Answers health checks from the member's current report."""

    def __init__(
        self,
        report: Callable[[], Report],
        streams: Streams,
    ) -> None:
        """Watches take places among `streams`, as those of callers without a proof."""
        self._report = report
        self._streams = streams

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        """Answer one check; an unknown service gets NOT_FOUND."""
        check = CHECKS.get(request.service)
        if check is None:
            names = ", ".join(name for name in CHECKS if name)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"known services: {names}")
        return self._answer(request.service)

    async def List(self, _request: Any, _context: Any) -> Any:  # noqa: N802  # gRPC's name
        """Answer all checks."""
        return health_pb2.HealthListResponse(statuses={name: self._answer(name) for name in CHECKS})

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Send the state now and after each change."""
        sent = None
        stream = self._streams.enter(Caller(address_of(context.peer())))
        try:
            while not stream.is_evicted.is_set():
                answer = self._answer(request.service)
                if answer != sent:
                    sent = answer
                    yield answer
                await asyncio.sleep(WATCH_MS / 1000)
        finally:
            self._streams.leave(stream)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "others need the place of a watch")

    def _answer(self, service: str) -> Any:
        check = CHECKS.get(service)
        states = health_pb2.HealthCheckResponse
        if check is None:
            return states(status=states.SERVICE_UNKNOWN)
        is_serving = check(self._report())
        return states(status=states.SERVING if is_serving else states.NOT_SERVING)
