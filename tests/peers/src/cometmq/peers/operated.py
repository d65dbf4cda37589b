# SPDX-License-Identifier: Apache-2.0
"""Runs the operator against a real API server, with StatefulSets but without nodes.

Brokers are real and run in this process. There is no kubelet, so the tests themselves mark the pods
of the brokers as ready.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from cometmq.broker.settings import BrokerSettings
from cometmq.operator.api import record_of
from cometmq.operator.api_types.security_sections import GROUP_KEY_FILE
from cometmq.operator.app import OperatorApp
from cometmq.operator.broker_groups.group_elector import Addresses
from cometmq.operator.settings import OperatorSettings
from cometmq.peers.kube import KubeApiServer
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded, load
from cometmq.testing.broker.broker_groups import FAST, KillableApp
from cometmq.testing.broker.logs import RecordingLog

T = TypeVar("T")

DEADLINE_S: Final = 90.0
POLL_S: Final = 0.2


class OperatedGroup:
    """The group `orders` in a namespace, an operator, and the brokers that the pods stand for."""

    def __init__(self, kube: KubeApiServer, namespace: str, folder: Path) -> None:
        self.kube, self.namespace, self.folder = kube, namespace, folder
        self.server = kube.server()
        self.main = {one: free_broker_port() for one in range(3)}
        self.control = {one: free_port() for one in range(9)}
        self.brokers: dict[int, KillableApp] = {}
        self.log = RecordingLog()

    async def kubectl(self, *arguments: str, **options: Any) -> str:
        call = (*arguments, "-n", self.namespace)
        return await asyncio.to_thread(lambda: self.kube.kubectl(*call, **options))

    async def get(self, *arguments: str) -> Any:
        return await asyncio.to_thread(lambda: self.kube.objects(*arguments, "-n", self.namespace))

    async def apply(self, **spec: Any) -> None:
        body = {
            "apiVersion": "cometmq.io/v1alpha1",
            "kind": "BrokerGroup",
            "metadata": {"name": "orders"},
            "spec": {
                "nameServers": [f"{HOST}:1"],
                "replication": {"renewDeadlineMs": 2000, "heardWithinMs": 300},
                **spec,
            },
        }
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def operator(self, identity: str = "one", liveness_port: int = -1) -> OperatorApp:
        settings = OperatorSettings(
            namespace=self.namespace, watch_namespaces=self.namespace, identity=identity,
            default_image="cometmq:test", drain_quiet_mills=1_000, liveness_port=liveness_port,
        )  # fmt: skip
        addresses = Addresses(
            control=lambda _group, one: f"{HOST}:{self.control[one]}",
            main=lambda _group, one: f"{HOST}:{self.main[one]}",
        )
        return OperatorApp(
            Loaded(settings, {}, {}), log=self.log, clock=SystemClock(), server=self.server,
            addresses=addresses,
        )  # fmt: skip

    async def start_broker(self, ordinal: int, **settings: str) -> None:
        given = {
            **FAST,
            "brokerName": "orders",
            "brokerId": str(ordinal),
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(self.main[ordinal]),
            "controlPort": str(self.control[ordinal]),
            "storePathRootDir": str(self.folder / str(ordinal)),
            "groupRecord": "file:/not-used",
            "groupMembers": ";".join(f"{one}={HOST}:{port}" for one, port in self.main.items()),
            "groupKeyFile": str(await self._key_file()),
            **settings,
        }
        app = KillableApp(
            load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given),
            log=RecordingLog(),
            clock=SystemClock(),
            record=record_of(self.server.records())(self.namespace, "orders"),
        )
        await app.start()
        self.brokers[ordinal] = app

    async def _key_file(self) -> Path:
        """Write the group's key to a file, as a kubelet would, once the operator has made it."""

        async def secrets() -> list[Any]:
            found = await self.get("secrets", "--field-selector=metadata.name=orders-group-key")
            return list(found["items"])

        (secret,) = await self.until(secrets, "the key of the group")
        path = self.folder / GROUP_KEY_FILE
        path.write_bytes(base64.b64decode(secret["data"][GROUP_KEY_FILE]))
        return path

    async def pods(self) -> dict[str, Any]:
        found = await self.get("pods", "-l", "cometmq.io/broker-group=orders")
        return {one["metadata"]["name"]: one for one in found["items"]}

    async def set_ready(self, *ordinals: int) -> None:
        """Mark pods as ready, and give them addresses, as a kubelet would."""
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
        for ordinal in ordinals:
            address = f"10.0.0.{ordinal}"
            status = {**ready, "podIP": address, "podIPs": [{"ip": address}]}
            await self.kubectl(
                "patch", "pod", f"orders-{ordinal}", "--subresource=status", "--type=merge",
                "-p", json.dumps({"status": status}),
            )  # fmt: skip

    async def status(self) -> dict[str, Any]:
        return dict((await self.get("bg", "orders")).get("status", {}))

    async def condition(self, type_: str) -> tuple[str, str] | None:
        found = (await self.status()).get("conditions", ())
        return next(((one["status"], one["reason"]) for one in found if one["type"] == type_), None)

    async def events(self) -> list[tuple[str, str]]:
        found = await self.get("events")
        return [(one["reason"], one["message"]) for one in found["items"]]

    async def until(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Wait until an asynchronous check returns a true value; return it."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            last = await check()
            if last:
                return last
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"not within {DEADLINE_S} s: {what}; log {self.log.events[-20:]}")

    async def until_status(self, **wanted: Any) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            status = await self.status()
            return (
                status if all(status.get(key) == value for key, value in wanted.items()) else None
            )

        return await self.until(check, f"status {wanted}")

    async def until_pods(self, count: int) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            found = await self.pods()
            return found if len(found) == count else None

        return await self.until(check, f"{count} pods")

    async def stop_brokers(self) -> None:
        for ordinal in tuple(self.brokers):
            await self.brokers.pop(ordinal).stop()

    async def close(self) -> None:
        patch = json.dumps({"metadata": {"finalizers": None}})
        arguments = ("patch", "bg", "orders", "--type=merge", "-p", patch)
        await self.kubectl(*arguments, is_checked=False)

    @asynccontextmanager
    async def operated(
        self, identity: str = "one", liveness_port: int = -1
    ) -> AsyncIterator[OperatorApp]:
        """Run an operator; stop the brokers before it ends."""
        app = self.operator(identity, liveness_port)
        await app.start()
        try:
            yield app
        finally:
            await self.stop_brokers()  # brokers must stop in the task that started them
            await app.stop()

    async def is_gone(self) -> bool:
        return not (await self.get("bg"))["items"]

    async def start_group(self, count: int = 2, **spec: Any) -> dict[str, Any]:
        """Create the group and its brokers; return its status once all are in sync."""
        await self.apply(replicas=count, **spec)
        for ordinal in range(count):
            await self.start_broker(ordinal)
        await self.until_pods(count)
        await self.set_ready(*range(count))
        return await self.until_status(phase="Running", inSyncCount=count)
