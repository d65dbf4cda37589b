# SPDX-License-Identifier: Apache-2.0
"""The control server of one member: gRPC on the program's own event loop.

If the member has a key of its group, calls need a proof (`ha/proof.py`), unless TLS demands a
certificate from every caller. Health checks need none.

Limits: CONNECTIONS_MAX connections and HTTP2_STREAMS_MAX calls on each, which gRPC counts;
ORDERS_MAX unfinished orders, REQUEST_BYTES_MAX per request, ORDER_TIMEOUT_MS per answer. Floods are
a firewall's work (SECURITY.md).

An order is completed even if its caller disconnects, because an interrupted order may leave a saved
promise without the actions that should follow it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cometmq.control.controlled import (
    ELECTOR_KEY,
    Controlled,
    Electors,
    Reason,
    Report,
    Target,
    lasting,
)
from cometmq.control.credentials import server_credentials
from cometmq.control.methods import (
    CHALLENGE_KEY,
    METHODS,
    PROOF_KEY,
    REASON_KEY,
    SERVICE,
    to_message,
)
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.proof import Keys, Seal, Verifier
from cometmq.ha.role import Role
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import GRID_S, TaskSet, describe, due_on_grid
from cometmq.runtime.places import check_port

CONNECTIONS_MAX: Final = 256
"""gRPC would accept connections until no descriptors are left for the broker's clients."""
HANDSHAKE_MS: Final = 5_000
"""How long a connection may take until its first HTTP/2 frame."""
HTTP2_STREAMS_MAX: Final = 10
"""An elector has one stream and one order for each member. gRPC refuses further calls at little
cost; with a limit of 64, calls of strangers took 20 to 40 % of a processor.
"""
ORDERS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 64 * 1024
ORDER_TIMEOUT_MS: Final = 10_000
WATCH_INTERVAL_MS: Final = 500
WATCH_INTERVAL_BOUNDS_MS: Final = (100, 10_000)
CHECK_S: Final = 0.1
"""How often a watch looks at the report: time alone can change it (a silent master)."""
DRAIN_MS: Final = 500
WRONG_PROOFS_MAX: Final = 3
UNPROVEN_ADDRESSES_MAX: Final = 256
WARN_PERIOD_MS: Final = 10_000
"""Minimum interval between events in the log that strangers cause."""

CODES: Final[Mapping[str, grpc.StatusCode]] = {
    OrderRefusal.STALE_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
    OrderRefusal.NOT_IN_SYNC: grpc.StatusCode.FAILED_PRECONDITION,
    OrderRefusal.NOT_MASTER: grpc.StatusCode.FAILED_PRECONDITION,
    OrderRefusal.RECOVERING: grpc.StatusCode.UNAVAILABLE,
    OrderRefusal.STORE_FAILED: grpc.StatusCode.DATA_LOSS,
    Reason.WRONG_MEMBER: grpc.StatusCode.NOT_FOUND,
    Reason.INVALID_CONFIG: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNPROVEN: grpc.StatusCode.UNAUTHENTICATED,
    Reason.TOO_MANY_CALLS: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Reason of a refusal -> status code."""


Work = Callable[[], Awaitable[Any]]


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
"""Service of `grpc.health.v1` -> whether it is serving."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Answers health checks from the member's current report."""

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        """Answer one check; an unknown service gets NOT_FOUND."""
        check = CHECKS.get(request.service)
        if check is None:
            names = ", ".join(filter(None, CHECKS))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"known services: {names}")
            raise AssertionError("abort raises")
        states = health_pb2.HealthCheckResponse
        is_serving = check(self._report())
        return states(status=states.SERVING if is_serving else states.NOT_SERVING)


class ControlServer:
    """Serves the control API and health checks of one member."""

    def __init__(
        self,
        member: Controlled,
        *,
        tls: TlsSettings | None = None,
        keys: Callable[[], Keys] = lambda: (),
        is_proof_needed: Callable[[], bool] = lambda: True,
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        log: Log = NO_LOG,
    ) -> None:
        """`is_proof_needed` returns False while keys are introduced at the callers."""
        self._member = member
        self._tls = tls
        self._log = log
        self._verifier = Verifier(keys, now_ms)
        self._is_proof_needed = is_proof_needed
        self._now_ms = now_ms
        self._warned_ms: int | None = None
        self._unproven: Counter[str] = Counter()
        """Number of successive calls with wrong proofs, by address."""
        self._has_certificates = False
        self.electors = Electors(now_ms)
        self._orders = TaskSet(log)
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int, *, setting: str = "controlPort") -> None:
        """Listen; port 0 picks a free port. Raise SettingsError if the port cannot be used."""
        credentials = server_credentials(self._tls) if self._tls else None
        check_port(host, port, setting=setting)
        # No limit for all calls together: strangers that come first would exclude the electors.
        server = grpc.aio.server(
            options=[
                ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.so_reuseport", 0),  # a port in use is refused
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.max_concurrent_streams", HTTP2_STREAMS_MAX),
            ],
        )
        server.add_generic_rpc_handlers([_handlers(self)])
        health_pb2_grpc.add_HealthServicer_to_server(Health(self._member.report), server)
        self._has_certificates = (
            credentials is not None
            and self._tls is not None
            and self._tls.need_client_auth == "require"
        )
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

    async def get_status(self, request: Any, context: Any, seal: Seal | None) -> Any:
        """Answer GetStatus."""
        await self._check(request, context, seal)
        return to_message(self._with_keys(self._plain_report(), seal))

    async def watch_status(
        self, request: Any, context: Any, seal: Seal | None
    ) -> AsyncGenerator[Any, None]:
        """Send the status now, after each change that elections depend on, and at intervals, on the
        grid: one turn of the loop then serves all watches.
        """
        await self._check(request, context, seal)
        lowest, highest = WATCH_INTERVAL_BOUNDS_MS
        interval_s = max(lowest, min(request.interval_ms or WATCH_INTERVAL_MS, highest)) / 1000
        step_s, half_s = min(interval_s, GRID_S), CHECK_S / 2
        sent, due_s, now_s = None, 0.0, asyncio.get_running_loop().time
        while True:
            if seal is not None and not self._verifier.is_accepted(seal):
                await self._challenge(context, "the key of this watch was removed")
            report = self._plain_report()
            state = lasting(report)
            if state != sent or now_s() >= due_s - half_s:
                sent, due_s = state, (now_s() + interval_s + half_s) // step_s * step_s
                yield to_message(self._with_keys(report, seal))
                continue  # the member may have changed meanwhile
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_on_grid(now_s(), CHECK_S)):
                    await self._member.changed()

    async def order(self, name: str, request: Any, context: Any, seal: Seal | None = None) -> Any:
        """Perform an order and answer with the status afterwards."""
        await self._check(request, context, seal)
        order = METHODS[name].decode(request)
        await self._to_the_end(name, lambda: self._member.obey(order), context, seal)
        report = self._with_keys(self._plain_report(), seal)
        status = report.status
        self._log.info(
            "control.ordered", order=name, role=str(status.role), epoch=status.epoch,
            promised=status.promised,
        )  # fmt: skip
        return to_message(report)

    async def update_config(self, request: Any, context: Any, seal: Seal | None) -> Any:
        """Change settings."""
        await self._check(request, context, seal)
        changes = dict(request.changes)
        change = await self._to_the_end(
            "UpdateConfig", lambda: self._member.update_config(changes), context, seal
        )
        return pb.UpdateConfigReply(applied=change.applied, needs_restart=change.needs_restart)

    # ---- shared ------------------------------------------------------------------------------

    def _plain_report(self) -> Report:
        return msgspec.structs.replace(self._member.report(), electors=self.electors.count)

    def _with_keys(self, report: Report, seal: Seal | None) -> Report:
        """Add the fingerprints of the group's keys, if the answer is proven."""
        if seal is None:
            return report
        return msgspec.structs.replace(report, group_keys=self._verifier.fingerprints())

    async def admit(self, name: str, raw: bytes, context: Any) -> Seal | None:
        """Return the seal of a call's answers, if it has a proof; refuse it if it needs one."""
        metadata = dict(context.invocation_metadata() or ())
        proof, mark = metadata.get(PROOF_KEY), metadata.get(ELECTOR_KEY)
        seal = None
        if self._verifier.has_keys:
            if isinstance(proof, bytes):
                seal = self._verifier.check(proof, name, self._me(), raw)
            is_needed = self._is_proof_needed() and not self._has_certificates
            if seal is not None:
                self._unproven.pop(_address_of(context), None)
            elif is_needed or proof is not None:  # a caller with a key wants proven answers
                self._note_unproven(_address_of(context), has_proof=proof is not None)
                text = "the call does not prove that it knows the group's key"
                await self._challenge(context, text)
        if mark is not None:
            self.electors.heard(str(mark))
        return seal

    async def _challenge(self, context: Any, text: str) -> NoReturn:
        await _refuse(
            context, Reason.UNPROVEN, f"{text}: set groupKeyFile to a file with one of its keys",
            None, (CHALLENGE_KEY, self._verifier.challenge),
        )  # fmt: skip

    def _note_unproven(self, address: str, *, has_proof: bool) -> None:
        """Warn about a call without a proof, or with several wrong ones in a row.

        One wrong proof is normal: a client's first call, and one after a pause, lacks the current
        challenge.
        """
        if has_proof:
            if len(self._unproven) >= UNPROVEN_ADDRESSES_MAX:
                self._unproven.clear()
            self._unproven[address] += 1
            if self._unproven[address] < WRONG_PROOFS_MAX:
                return
        now_ms = self._now_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_PERIOD_MS:
            self._warned_ms = now_ms
            self._log.warning(
                "control.unproven", peer=address, proof="wrong" if has_proof else "none",
                action="if this is an elector or an administrator, give it the groupKeyFile",
            )  # fmt: skip

    def _me(self) -> Target:
        report = self._member.report()
        return Target(report.group, report.status.copy.ordinal)

    async def _check(self, request: Any, context: Any, seal: Seal | None) -> None:
        """Refuse a request addressed to a different member."""
        mine = self._me()
        meant = Target(request.target.group, request.target.ordinal)
        if meant != mine:
            text = f"this is {mine}, not {meant}: check the addresses of the members"
            await _refuse(context, Reason.WRONG_MEMBER, text, seal)

    async def _to_the_end(self, name: str, work: Work, context: Any, seal: Seal | None) -> Any:
        """Run an order in its own task, and wait for it with a deadline."""
        if len(self._orders) >= ORDERS_MAX:
            await _refuse(context, Reason.TOO_MANY_CALLS, f"{ORDERS_MAX} orders are unfinished")
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
            await _refuse(context, result.reason, str(result), seal)
        if isinstance(result, SettingsError):
            await _refuse(context, Reason.INVALID_CONFIG, str(result), seal)
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


async def _refuse(
    context: Any,
    reason: OrderRefusal | Reason,
    text: str,
    seal: Seal | None = None,
    *more: tuple[str, bytes],
) -> NoReturn:
    """Refuse a call, with a proof if the call has one."""
    proof = () if seal is None else ((PROOF_KEY, seal.refusal(reason.value, text)),)
    await context.abort(CODES[reason], text, ((REASON_KEY, reason.value), *proof, *more))
    raise AssertionError("abort raises")


async def _parsed(request: Any, raw: bytes, context: Any) -> Any:
    try:
        return request.FromString(raw)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unreadable request: {error}")
        raise AssertionError("abort raises") from error


def _sealed(message: Any, seal: Seal | None) -> bytes:
    """Return a message of an answer, with a proof if the call has one."""
    raw: bytes = message.SerializeToString()
    return raw if seal is None else seal.add_to(raw)


def _address_of(context: Any) -> str:
    """Return the host of a caller, from the name that gRPC gives it: `ipv6:%5B::1%5D:4000`."""
    return unquote(context.peer()).partition(":")[2].rpartition(":")[0]


def _handlers(server: ControlServer) -> grpc.GenericRpcHandler:
    """Return the table of methods; they get and return bytes, because proofs cover them."""

    def unary(name: str, request: Any, perform: Any) -> grpc.RpcMethodHandler:
        async def method(raw: bytes, context: Any) -> bytes:
            seal = await server.admit(name, raw, context)
            answer = await perform(await _parsed(request, raw, context), context, seal)
            return _sealed(answer, seal)

        return grpc.unary_unary_rpc_method_handler(method)

    def ordered(name: str) -> Any:
        return lambda request, context, seal: server.order(name, request, context, seal)

    async def watch(raw: bytes, context: Any) -> AsyncIterator[bytes]:
        seal = await server.admit("WatchStatus", raw, context)
        request = await _parsed(pb.WatchStatusRequest, raw, context)
        async with contextlib.aclosing(server.watch_status(request, context, seal)) as messages:
            async for message in messages:
                yield _sealed(message, seal)

    methods = {name: unary(name, order.request, ordered(name)) for name, order in METHODS.items()}
    methods["GetStatus"] = unary("GetStatus", pb.GetStatusRequest, server.get_status)
    methods["UpdateConfig"] = unary("UpdateConfig", pb.UpdateConfigRequest, server.update_config)
    methods["WatchStatus"] = grpc.unary_stream_rpc_method_handler(watch)
    return grpc.method_handlers_generic_handler(SERVICE, methods)
