# SPDX-License-Identifier: Apache-2.0
"""Elects the active operator: the holder of a Lease.

Two active operators cause no damage to groups, because elections are compare-and-swap and both
apply the same objects. The Lease avoids duplicate work, and prevents an operator of an earlier
release from undoing the work of a newer one. Wall clocks are not compared: a candidate waits until
the Lease has not changed for DURATION_MS by its own clock.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

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
    """Another operator may be active now, so this process must exit."""


class Leadership:
    """Acquires and keeps the Lease of the operators."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        now_ms: Callable[[], int],
        wall_time: Callable[[], str],
        log: Log,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`wall_time` returns the time in the API's format, for users who read the Lease."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._now_ms = now_ms
        self._wall_time = wall_time
        self._log = log
        self._sleep = sleep
        self._renewed_ms = 0
        self.is_leader = False

    async def acquire(self) -> None:
        """Wait until this operator holds the Lease."""
        version, since_ms = "", self._now_ms()
        while True:
            try:
                lease = await self._api.get("Lease", self._namespace, self._name)
                found = "" if lease is None else str(lease["metadata"]["resourceVersion"])
                if found != version:
                    version, since_ms = found, self._now_ms()
                is_free = lease is None or self._is_ours(lease)
                is_over = self._now_ms() - since_ms >= DURATION_MS
                if (is_free or is_over) and await self._take(lease):
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
                lease = await self._api.get("Lease", self._namespace, self._name)
                if lease is not None and not self._is_ours(lease):
                    self.is_leader = False
                    raise LeadershipLost(f"{lease['spec'].get('holderIdentity')} has the lease")
                await self._take(lease)
            except (ApiUnreachable, ApiRefused) as failure:
                error = str(failure)
            if self._now_ms() - self._renewed_ms >= DEADLINE_MS:
                self.is_leader = False
                raise LeadershipLost(f"the lease of the operators is lost: {error}")

    async def release(self) -> None:
        """Release the Lease, so that another operator can take over at once."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            lease = await self._api.get("Lease", self._namespace, self._name)
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
        self.is_leader = True
        return True

    async def _write(self, lease: Body | None, holder: str | None) -> None:
        spec: dict[str, Any] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_MS // 1000,
            "renewTime": self._wall_time(),
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self._name}, "spec": spec,
        }  # fmt: skip
        if lease is None:
            await self._api.create("Lease", self._namespace, body)
            return
        metadata = lease["metadata"]
        body["metadata"] = {key: metadata[key] for key in ("uid", "resourceVersion")}
        if await self._api.patch("Lease", self._namespace, self._name, body) is None:
            raise ApiRefused(409, "the lease is gone")

    def _is_ours(self, lease: Body) -> bool:
        return lease["spec"].get("holderIdentity") in (self._identity, None)
