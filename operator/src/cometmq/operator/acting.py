# SPDX-License-Identifier: Apache-2.0
"""One operator: its Lease and, while it holds the Lease, the tasks of all objects.

It watches nothing itself: the handlers of kopf wake its tasks.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from cometmq.operator.api import ApiServer, KubeApi, in_cluster, record_of
from cometmq.operator.broker_groups.group_elector import Addresses
from cometmq.operator.broker_groups.group_pass import Groups
from cometmq.operator.leader import Leadership
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.passes import Context
from cometmq.operator.secrets import Secrets
from cometmq.operator.settings import OperatorSettings
from cometmq.operator.topics_and_groups.declared_pass import DeclaredObjects
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock


class Acting:
    """The tasks of all objects, and what kopf's handlers need."""

    def __init__(
        self,
        groups: Groups,
        objects: DeclaredObjects,
        server: ApiServer,
        settings: OperatorSettings,
        folder: Path,
    ) -> None:
        """`folder` is private to the operator."""
        self.settings = settings
        self.folder = folder
        self.groups = groups
        self.objects = objects
        self.server = server
        self.loop = asyncio.get_running_loop()
        """The loop that runs the passes; handlers hand over to it."""

    def use(self, *, claims: Mapping[Any, Any], pods: Mapping[Any, Any]) -> None:
        """Let passes read kopf's indexes."""
        self.groups.context.claims, self.groups.context.pods = claims, pods

    async def close(self) -> None:
        await self.groups.close()
        await self.objects.close()


class Operator:
    """Use as an async context manager, which releases the Lease; brokers keep running."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        log: Log,
        clock: Clock,
        server: ApiServer | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        """`server` overrides the API server of the pod's cluster, and `addresses` the brokers'
        addresses.
        """
        self.settings = settings
        self.figures = OperatorFigures()
        self._log = log
        self._clock = clock
        self._server = server
        self._addresses = addresses
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        settings, server = self.settings, self._server or in_cluster()
        folder = tempfile.TemporaryDirectory(prefix="cometmq-operator-")
        async with AsyncExitStack() as stack:
            self._folder = Path(stack.enter_context(folder))
            """Holds certificates while the operator runs."""
            self._server, self._records = server, server.records()
            stack.push_async_callback(self._records.client.close)
            self._api = await stack.enter_async_context(KubeApi(server))
            self.figures.requests = self._api.requests
            self.leadership = Leadership(
                await stack.enter_async_context(KubeApi(server)),
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=settings.identity,
                now_ms=self._clock.monotonic_ms,
                log=self._log,
            )
            self._api.may_write = self.leadership.holds
            stack.push_async_callback(self.leadership.release)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    def act(self) -> Acting:
        """Return new tasks; only the holder of the Lease may act."""
        settings, now_ms = self.settings, self._clock.monotonic_ms
        assert self._server is not None
        context = Context(
            api=self._api,
            secrets=Secrets(self._api, now_ms=now_ms, folder=self._folder),
            clock=self._clock,
            log=self._log,
            wall_time=api_time,
            image=settings.default_image,
            operator_namespace=settings.namespace,
            resync_ms=settings.resync_mills,
            quiet_ms=settings.drain_quiet_mills,
        )
        groups = Groups(
            context, self.figures, record_of=record_of(self._records), addresses=self._addresses
        )
        return Acting(
            groups, DeclaredObjects(context, self.figures), self._server, settings, self._folder
        )


def api_time() -> str:
    """Return the time in the format of conditions."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
