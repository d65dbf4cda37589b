# SPDX-License-Identifier: Apache-2.0
"""Elects the active operator: the holder of a Lease.

The Lease is written by compare-and-swap, and wall clocks are not compared: a candidate waits until
the Lease has not changed for DURATION_MS by its own clock, and a holder stops DEADLINE_MS after the
start of its last renewal. kopf's peering does neither, so kopf runs only while the Lease is held.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

Sleep = Callable[[float], Awaitable[None]]

DURATION_MS: Final = 8_000
"""After this time without a renewal, another operator takes over."""
DEADLINE_MS: Final = 5_000
"""After this time without a renewal, an operator stops acting."""
RENEW_MS: Final = 2_000


class LeadershipLost(CometError):
    """Another operator may be active now, so this one must stop acting."""


class Leadership:
    """Acquires and keeps the Lease of the operators."""

    def __init__(  # the collaborators, each by name
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        now_ms: Callable[[], int],
        log: Log,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._now_ms = now_ms
        self._log = log
        self._sleep = sleep
        self._renewed_ms: int | None = None
        """Start of the last renewal; None on a standby."""

    def holds(self) -> bool:
        """Return whether no other operator may act now.

        This is asked before each write, because a process that was stopped for a while continues
        before it notices that its time is over.
        """
        return self._left_ms() > 0

    def _left_ms(self) -> int:
        if self._renewed_ms is None:
            return 0
        return max(0, self._renewed_ms + DEADLINE_MS - self._now_ms())

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        version, since_ms = "", self._now_ms()
        while True:
            try:
                lease = await self._read()
                found = "" if lease is None else str(lease["metadata"]["resourceVersion"])
                if found != version:
                    version, since_ms = found, self._now_ms()
                is_over = self._now_ms() - since_ms >= DURATION_MS
                if (lease is None or self._is_ours(lease) or is_over) and await self._take(lease):
                    self._log.info("leader.elected", identity=self._identity)
                    return
            except (ApiUnreachable, ApiRefused) as error:
                self._log.warning("leader.unknown", error=str(error))
            await self._sleep(RENEW_MS / 1000)

    async def keep(self) -> None:
        """Renew the Lease; raise LeadershipLost once another operator may be active."""
        while True:
            await self._sleep(RENEW_MS / 1000)
            error = "it was not renewed in time"
            try:
                async with asyncio.timeout(self._left_ms() / 1000):
                    lease = await self._read()
                    if lease is not None and not self._is_ours(lease):
                        self._renewed_ms = None
                        raise LeadershipLost(f"{lease['spec'].get('holderIdentity')} has the lease")
                    await self._take(lease)
            except (ApiUnreachable, ApiRefused, TimeoutError) as failure:
                error = str(failure) or error
            if not self.holds():
                self._renewed_ms = None
                raise LeadershipLost(f"the lease of the operators is lost: {error}")

    async def release(self) -> None:
        """Release the Lease, so that another operator can take over at once."""
        if self._renewed_ms is None:
            return
        self._renewed_ms = None
        try:
            lease = await self._read()
            if lease is not None and self._is_ours(lease):
                await self._write(lease, None)
        except (ApiUnreachable, ApiRefused) as error:
            self._log.warning("leader.unknown", error=str(error))

    async def _take(self, lease: Body | None) -> bool:
        """Write the Lease unless it has changed since it was read; return whether it is held."""
        started_ms = self._now_ms()
        try:
            await self._write(lease, self._identity)
        except ApiRefused as error:
            if error.status != 409:
                raise
            return False
        self._renewed_ms = started_ms
        return True

    async def _read(self) -> Body | None:
        return await self._api.get("Lease", self._namespace, self._name)

    async def _write(self, lease: Body | None, holder: str | None) -> None:
        """Create the Lease, or replace the version that was read; raise ApiRefused with status 409
        if another client was faster.
        """
        body: Body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION_MS // 1000,
                # For people who read it. Kubernetes demands the six digits, and isoformat() leaves
                # them out of a whole second.
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        if lease is None:
            await self._api.create(body)
            return
        await self._api.replace({**lease, "spec": body["spec"]})

    def _is_ours(self, lease: Body) -> bool:
        return lease["spec"].get("holderIdentity") in (self._identity, None)
