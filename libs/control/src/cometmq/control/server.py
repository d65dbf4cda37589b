# SPDX-License-Identifier: Apache-2.0
"""The control server of one member: gRPC on the program's own event loop.

Limits: CALLS_MAX calls at a time, REQUEST_BYTES_MAX per request, ORDER_TIMEOUT_MS per answer. An
order is completed even if its caller disconnects, because an interrupted order may leave a saved
promise that is never acted upon.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health_pb2_grpc

from cometmq.control.credentials import server_credentials
from cometmq.control.health import Health
from cometmq.control.member import Controlled, Reason, Report, Target, lasting
from cometmq.control.messages import to_message
from cometmq.control.methods import ORDERS, REASON_KEY, SERVICE
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.member import OrderRefused, Refusal
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.places import check_port

CALLS_MAX: Final = 32
"""Each elector has a watch and a call open per member; other calls are for operators and probes."""
REQUEST_BYTES_MAX: Final = 64 * 1024
ORDER_TIMEOUT_MS: Final = 10_000
WATCH_INTERVAL_MS: Final = 500
WATCH_INTERVAL_BOUNDS_MS: Final = (100, 10_000)
CHANGE_CHECK_MS: Final = 50
"""How soon a change of role or epoch is sent; reading a report is cheap."""
DRAIN_MS: Final = 500

CODES: Final[Mapping[str, grpc.StatusCode]] = {
    Refusal.STALE_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.NOT_IN_SYNC: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.NOT_MASTER: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.RECOVERING: grpc.StatusCode.UNAVAILABLE,
    Refusal.STORE_FAILED: grpc.StatusCode.DATA_LOSS,
    Reason.WRONG_MEMBER: grpc.StatusCode.NOT_FOUND,
    Reason.INVALID_CONFIG: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Reason of a refusal -> status code."""


Work = Callable[[], Awaitable[Any]]


class ControlServer:
    """Serves the control API and health checks of one member."""

    def __init__(
        self, member: Controlled, *, tls: TlsSettings | None = None, log: Log = NO_LOG
    ) -> None:
        self._member = member
        self._tls = tls
        self._log = log
        self._orders = TaskSet(log)
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int, *, setting: str = "controlPort") -> None:
        """Listen; port 0 picks a free port. Raise SettingsError if the port cannot be used."""
        credentials = server_credentials(self._tls) if self._tls else None
        check_port(host, port, setting=setting)
        server = grpc.aio.server(
            maximum_concurrent_rpcs=CALLS_MAX,
            options=[
                ("grpc.so_reuseport", 0),  # a second broker on the port must fail
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ],
        )
        server.add_generic_rpc_handlers([_handlers(self)])
        health_pb2_grpc.add_HealthServicer_to_server(Health(self._member.report), server)
        place = f"{f'[{host}]' if ':' in host else host or '[::]'}:{port}"
        try:
            if credentials is None:
                self.port = server.add_insecure_port(place)
            else:
                self.port = server.add_secure_port(place, credentials)
        except RuntimeError as error:
            raise SettingsError(
                f"cannot listen on {place} for the control API; choose another port with {setting}"
            ) from error
        await server.start()
        self._server = server
        self._log.info("control.ready", host=host, port=self.port, is_tls=credentials is not None)

    async def stop(self) -> None:
        """Stop listening; open calls have DRAIN_MS to end, and orders in progress are completed."""
        if self._server is not None:
            await self._server.stop(DRAIN_MS / 1000)
        await self._orders.drain(ORDER_TIMEOUT_MS / 1000)

    # ---- methods -----------------------------------------------------------------------------

    async def get_status(self, request: Any, context: Any) -> Any:
        """Answer GetStatus."""
        await self._check(request, context)
        return to_message(self._member.report())

    async def watch_status(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Send the status now, after each change that elections depend on, and at intervals."""
        await self._check(request, context)
        lowest, highest = WATCH_INTERVAL_BOUNDS_MS
        interval_ms = max(lowest, min(request.interval_ms or WATCH_INTERVAL_MS, highest))
        sent: Report | None = None
        waited_ms = 0
        while True:
            report = self._member.report()
            if sent is None or waited_ms >= interval_ms or lasting(sent) != lasting(report):
                sent, waited_ms = report, 0
                yield to_message(report)
            await asyncio.sleep(CHANGE_CHECK_MS / 1000)
            waited_ms += CHANGE_CHECK_MS

    async def order(self, name: str, request: Any, context: Any) -> Any:
        """Perform an order and answer with the status afterwards."""
        await self._check(request, context)
        perform = ORDERS[name].perform
        await self._to_the_end(name, lambda: perform(self._member, request), context)
        report = self._member.report()
        status = report.status
        self._log.info(
            "control.ordered", order=name, role=str(status.role), epoch=status.epoch,
            promised=status.promised,
        )  # fmt: skip
        return to_message(report)

    async def update_config(self, request: Any, context: Any) -> Any:
        """Change settings."""
        await self._check(request, context)
        changes = dict(request.changes)
        change = await self._to_the_end(
            "UpdateConfig", lambda: self._member.update_config(changes), context
        )
        return pb.UpdateConfigReply(applied=change.applied, needs_restart=change.needs_restart)

    # ---- shared ------------------------------------------------------------------------------

    async def _check(self, request: Any, context: Any) -> None:
        """Refuse a request addressed to a different member."""
        report = self._member.report()
        mine = Target(report.group, report.status.copy.ordinal)
        meant = Target(request.target.group, request.target.ordinal)
        if meant != mine:
            text = f"this is {mine}, not {meant}: check the addresses of the members"
            await _refuse(context, Reason.WRONG_MEMBER, text)

    async def _to_the_end(self, name: str, work: Callable[[], Awaitable[Any]], context: Any) -> Any:
        """Run an order in its own task, and wait for it with a deadline."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders.spawn(_performed(work, outcome), name=f"control-{name}")
        try:
            async with asyncio.timeout(ORDER_TIMEOUT_MS / 1000):
                result = await asyncio.shield(outcome)
        except TimeoutError:
            text = f"{name} takes longer than {ORDER_TIMEOUT_MS} ms and goes on: ask for the status"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            raise
        if isinstance(result, OrderRefused):
            await _refuse(context, result.reason, str(result))
        if isinstance(result, SettingsError):
            await _refuse(context, Reason.INVALID_CONFIG, str(result))
        if isinstance(result, Exception):
            self._log.error("control.failed", order=name, error=describe(result), exc_info=result)
            await context.abort(grpc.StatusCode.INTERNAL, f"{name} failed: {describe(result)}")
        return result


async def _performed(work: Work, outcome: asyncio.Future[Any]) -> None:
    """Put the result or the error of an order into `outcome`, which may no longer be awaited."""
    try:
        outcome.set_result(await work())
    except Exception as error:  # noqa: BLE001  # the border to gRPC: every error is an answer
        outcome.set_result(error)


async def _refuse(context: Any, reason: Refusal | Reason, text: str) -> NoReturn:
    await context.abort(CODES[reason], text, ((REASON_KEY, reason.value),))
    raise AssertionError("abort raises")


def _handlers(server: ControlServer) -> grpc.GenericRpcHandler:
    """Return the table of methods; the messages come from control.proto."""
    to_bytes = pb.MemberStatus.SerializeToString

    def unary(request: Any, method: Any, answer: Any = to_bytes) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=answer
        )

    def ordered(name: str) -> Any:
        async def method(request: Any, context: Any) -> Any:
            return await server.order(name, request, context)

        return method

    methods = {name: unary(order.request, ordered(name)) for name, order in ORDERS.items()}
    methods["GetStatus"] = unary(pb.GetStatusRequest, server.get_status)
    methods["UpdateConfig"] = unary(
        pb.UpdateConfigRequest, server.update_config, pb.UpdateConfigReply.SerializeToString
    )
    methods["WatchStatus"] = grpc.unary_stream_rpc_method_handler(
        server.watch_status,
        request_deserializer=pb.WatchStatusRequest.FromString,
        response_serializer=to_bytes,
    )
    return grpc.method_handlers_generic_handler(SERVICE, methods)
