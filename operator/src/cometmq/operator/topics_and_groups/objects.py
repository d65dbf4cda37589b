# SPDX-License-Identifier: Apache-2.0
"""Runs one task per Topic and ConsumerGroup, and tracks which object owns which name."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cometmq.operator.access import Secrets
from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.operator.metrics import DeclaredFigures
from cometmq.operator.topics_and_groups.item import PLURALS, Claim, Key, declared_of
from cometmq.operator.topics_and_groups.passes import Pass, Shared
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import Clock

PASSES_MAX: Final = 8
"""Concurrent passes: each reads a table of all topics from every broker."""
RESYNC_FACTOR: Final = 10
"""Changes on brokers cause no events, and reading them costs more than reading objects. With the
default of 30 s for groups, manual changes are repaired within five minutes."""
RETRY_MS: Final = 2_000


class Looked(msgspec.Struct):
    """One managed object: its passes, and the event that wakes its task."""

    work: Pass
    wake: asyncio.Event


class Objects:
    def __init__(  # noqa: PLR0913  # what all passes share, each by name
        self,
        api: KubeApi,
        *,
        resync_ms: int,
        quiet_ms: int,
        wall_time: Callable[[], str],
        clock: Clock,
        secrets: Secrets,
        log: Log,
        passes: Counter[tuple[str, str]] | None = None,
    ) -> None:
        """`passes` counts passes by kind and result."""
        self._api = api
        self._log = log
        self._claims: dict[Key, Claim] = {}
        self._objects: dict[Key, Looked] = {}
        self._marks: dict[Key, tuple[object, ...]] = {}
        """The parts of each object, as last seen, whose change starts a pass."""
        self._loaded = asyncio.Event()
        self._turns = asyncio.Semaphore(PASSES_MAX)
        self._tasks = TaskSet(log)
        self._passes = Counter() if passes is None else passes
        self._shared = Shared(
            api=api,
            resync_ms=resync_ms * RESYNC_FACTOR,
            quiet_ms=quiet_ms,
            wall_time=wall_time,
            now_ms=clock.monotonic_ms,
            others=self._competing,
            secrets=secrets,
            log=log,
        )

    def start(self, namespaces: Sequence[str]) -> None:
        """Load the claims in these namespaces (by default, all) in the background; passes
        begin once the claims are known.

        Otherwise, the younger of two objects might change a topic that the older one owns.
        """
        self._tasks.keep(lambda: self._load(tuple(namespaces) or ("",)), name="declared-claims")

    def changed(self, kind: str, body: Body) -> None:
        """Note an object that was created or changed, and start a pass over it now.

        A change of the status alone starts no pass, because the operator itself writes the status,
        and a shrinking backlog would otherwise cause passes without a pause.
        """
        self._note(kind, body)
        metadata = body["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        parts = ("uid", "generation", "annotations", "finalizers", "deletionTimestamp")
        mark = tuple(metadata.get(part) for part in parts)
        if self._marks.get(key) != mark or key not in self._objects:
            self._marks[key] = mark
            self._wake(key)

    def deleted(self, kind: str, namespace: str, name: str) -> None:
        """Forget an object; another object that declares the same name takes over."""
        self._marks.pop((kind, namespace, name), None)
        self._forget((kind, namespace, name))

    def figures(self) -> list[DeclaredFigures]:
        return [
            DeclaredFigures(kind, namespace, name, looked.work.status)
            for (kind, namespace, name), looked in self._objects.items()
        ]

    async def close(self) -> None:
        """Stop all tasks; another operator may take over."""
        await self._tasks.close()
        self._objects.clear()

    async def _load(self, namespaces: Iterable[str]) -> None:
        while not self._loaded.is_set():
            try:
                for kind, namespace in itertools.product(PLURALS, namespaces):
                    for body in await self._api.list_all(kind, namespace):
                        self._note(kind, body)
                self._loaded.set()
            except (ApiUnreachable, ApiRefused) as error:
                self._log.warning("declared.unattended", object="all", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

    def _competing(self, claim: Claim) -> list[Claim]:
        return [one for one in self._claims.values() if claim.competes(one)]

    def _note(self, kind: str, body: Body) -> None:
        try:
            item = declared_of(kind, body)
        except msgspec.ValidationError:  # of another version of the definition: its pass reports it
            return
        if item.is_deleting:
            self._forget(item.key)
            return
        before = self._claims.get(item.key)
        self._claims[item.key] = item.claim
        if before is not None and before != item.claim:
            self._wake_all(self._competing(before))

    def _forget(self, key: Key) -> None:
        claim = self._claims.pop(key, None)
        if claim is not None:
            self._wake_all(self._competing(claim))

    def _wake_all(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._wake(claim.key)

    def _wake(self, key: Key) -> None:
        looked = self._objects.get(key)
        if looked is None:
            looked = self._objects[key] = Looked(Pass(self._shared), asyncio.Event())
            self._tasks.keep(lambda: self._run(key), name=f"declared-{'-'.join(key)}")
        looked.wake.set()

    async def _run(self, key: Key) -> None:
        looked = self._objects[key]
        await self._loaded.wait()
        while True:
            looked.wake.clear()
            result = "done"
            try:
                async with self._turns:
                    pause_ms = await looked.work.run(key)
            except (ApiUnreachable, ApiRefused, msgspec.ValidationError) as error:
                result, pause_ms = "failed", RETRY_MS
                self._log.warning("declared.unattended", object="/".join(key), error=str(error))
            self._passes[key[0], result] += 1
            if pause_ms is None:
                if not looked.wake.is_set():
                    del self._objects[key]
                    return
                continue
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await looked.wake.wait()
            except TimeoutError:
                continue
