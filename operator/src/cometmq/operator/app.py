# SPDX-License-Identifier: Apache-2.0
"""The operator as a program: a standby until it holds the Lease, then with kopf in a thread."""

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Any, Final, cast

import kopf

from cometmq.operator import handlers
from cometmq.operator.acting import Acting, Operator
from cometmq.operator.api import ApiServer, in_cluster
from cometmq.operator.broker_groups.group_elector import Addresses
from cometmq.operator.leader import LeadershipLost
from cometmq.operator.metrics import ELECTOR_FAMILIES, FAMILIES, OperatorFigures, electors
from cometmq.operator.settings import OperatorSettings
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.settings import Loaded

RESTART_S: Final = 1.0
"""Pause before kopf runs again; it ends when a watch reports an error that it does not know."""
STOP_S: Final = 15.0


class OperatorApp:
    def __init__(
        self,
        settings: Loaded[OperatorSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        server: ApiServer | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        """`server` overrides the API server of the pod's cluster, and `addresses` overrides the
        brokers' addresses.
        """
        self._settings = settings.value
        self._log = log
        self._server = server
        self._operator = Operator(
            self._settings, log=log, clock=clock, server=server, addresses=addresses
        )
        self._stack = AsyncExitStack()
        self._is_started = False
        self._acting: Acting | None = None
        if self._settings.webhook_address:
            import_module("cometmq.operator.admission")  # which adds to what kopf calls
        self.acting = asyncio.Event()
        """Set while this operator manages groups."""
        if admin is not None:
            admin.add_ready_check("operator", self.fault)
            admin.registry.add(StatsCollector(FAMILIES, self.figures))
            admin.registry.add(StatsCollector(ELECTOR_FAMILIES, lambda: electors(self.figures())))

    def check(self) -> None:
        """Raise SettingsError outside a pod."""
        if self._server is None:
            in_cluster()

    def fault(self) -> str | None:
        """Return why this operator cannot work; None if it can, or is a standby."""
        return None if self._is_started else "the operator has not started"

    def figures(self) -> OperatorFigures:
        """Return the figures for metrics; a standby manages no groups."""
        figures, acting = self._operator.figures, self._acting
        figures.is_acting = acting is not None
        figures.groups = [] if acting is None else acting.groups.figures()
        figures.declared = [] if acting is None else acting.objects.figures()
        return figures

    async def start(self) -> None:
        """Start as a standby; the API server need not be reachable yet."""
        async with AsyncExitStack() as stack:
            operator = await stack.enter_async_context(self._operator)
            tasks = TaskSet(self._log)
            stack.push_async_callback(tasks.close)
            tasks.keep(lambda: self._run(operator), name="operator")
            self._stack = stack.pop_all()
        self._is_started = True
        self._log.info("operator.ready", identity=self._settings.identity)

    async def stop(self) -> None:
        """Stop, and release the Lease; brokers keep running."""
        await self._stack.aclose()
        self._log.info("operator.stopped")

    async def _run(self, operator: Operator) -> None:
        while True:
            await self._stand_by(operator)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(operator.leadership.keep(), name="operator-lease")
                    group.create_task(self._act(operator), name="operator-acting")
            except* LeadershipLost as lost:
                self._log.warning("leader.lost", error=str(lost.exceptions[0]))

    async def _stand_by(self, operator: Operator) -> None:
        """Wait for the Lease; until then, the port of kopf's liveness endpoint answers, too."""
        if (port := self._settings.liveness_port) < 0:
            await operator.leadership.acquire()
            return
        liveness = AdminHttp(log=self._log)
        await liveness.start(port, setting="livenessPort")
        try:
            await operator.leadership.acquire()
        finally:
            await liveness.stop()

    async def _act(self, operator: Operator) -> None:
        acting = self._acting = operator.act()
        self.acting.set()
        try:
            while True:
                error = await self._watch(acting)
                self._log.warning("kopf.ended", error=str(error))
                await asyncio.sleep(RESTART_S)
        finally:
            self.acting.clear()
            self._acting = None
            await acting.close()

    async def _watch(self, acting: Acting) -> BaseException | None:
        """Run kopf in a thread until it ends; return its error.

        When this is cancelled, the tasks stop at once, and then kopf.
        """
        settings, here = self._settings, asyncio.get_running_loop()
        namespaces = [one for one in settings.watch_namespaces.split(";") if one]
        port, identity = settings.liveness_port, cast("Any", settings.identity)
        ended: asyncio.Future[BaseException | None] = here.create_future()
        flags: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        is_stopping = False

        async def watch() -> None:
            flag = asyncio.Event()
            flags.append((asyncio.get_running_loop(), flag))
            if is_stopping:
                return
            await kopf.operator(
                registry=handlers.REGISTRY,
                memo=kopf.Memo(acting=acting),
                identity=identity,  # its own needs an entry in /etc/passwd
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                liveness_endpoint=None if port < 0 else f"http://0.0.0.0:{port}/healthz",
                stop_flag=flag,
            )

        def run() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(watch())
            except BaseException as found:  # noqa: BLE001  # handed to the loop of the passes
                error = found
            here.call_soon_threadsafe(ended.set_result, error)

        threading.Thread(target=run, name="kopf", daemon=True).start()
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            is_stopping = True
            for loop, flag in flags:
                with suppress(RuntimeError):  # its loop has just ended
                    loop.call_soon_threadsafe(flag.set)
            await acting.close()
            await asyncio.wait([ended], timeout=STOP_S)
            raise
