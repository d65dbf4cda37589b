# SPDX-License-Identifier: Apache-2.0
"""Watches objects with kopf; an event wakes the object's group, or the object's own passes.

Handlers do nothing else: all logic is in passes that read the current state, so a lost, late or
repeated event does no harm. kopf stores nothing in the objects. Its peering is not used, because it
is not a lock: see `leader.py`.

kopf runs on a thread with its own event loop. On the program's loop, it would replace the signal
handlers, and when it ends it would cancel every task that was started after it.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import kopf

from cometmq.operator.api import Server
from cometmq.operator.group import GROUP_LABEL
from cometmq.operator.group_tasks import Groups
from cometmq.operator.models import GROUP, PLURAL, VERSION
from cometmq.operator.topics_and_groups.item import PLURALS
from cometmq.operator.topics_and_groups.objects import Objects
from cometmq.remoting.errors import CometError

OWNED: Final = (
    ("apps", "v1", "statefulsets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("", "v1", "configmaps"),
    ("", "v1", "pods"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
)
"""Kinds of objects that belong to groups, as their labels show."""


IDENTITY: Final = "cometmq-operator"
"""Without an identity, kopf looks up the user name, which the user of a pod does not have."""

STOP_S: Final = 10.0
CLOSE_S: Final = 0.5
"""aiohttp closes TLS connections some time after their session; this cannot be awaited."""


class WatchesEnded(CometError):
    """kopf ended unexpectedly; without its events, groups are reconciled too rarely."""


async def watch(
    groups: Groups, objects: Objects, server: Server, namespaces: tuple[str, ...]
) -> None:
    """Wake `groups` and `objects` on events until cancelled; raise WatchesEnded if kopf fails."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def post(call: Callable[..., None], *arguments: Any) -> None:
        loop.call_soon_threadsafe(call, *arguments)

    async def work() -> None:
        await kopf.operator(
            registry=registry_of(groups, objects, server, post),
            settings=settings_of(namespaces),
            standalone=True,
            identity=IDENTITY,  # type: ignore[arg-type]  # a str; kopf keeps its name for it private
            namespaces=namespaces,
            clusterwide=not namespaces,
            stop_flag=stop,
        )
        await asyncio.sleep(CLOSE_S)

    running = loop.run_in_executor(None, lambda: asyncio.run(work()))
    try:
        await asyncio.shield(running)
    except Exception as error:
        raise WatchesEnded(f"the watches of the API server failed: {error}") from error
    finally:
        stop.set()
        await asyncio.wait({running}, timeout=STOP_S)
    raise WatchesEnded("the watches of the API server have ended")


def registry_of(
    groups: Groups, objects: Objects, server: Server, post: Callable[..., None]
) -> kopf.OperatorRegistry:
    """Return kopf's registry: the login to `server`, and handlers that use `post` to call `groups`
    and `objects` on the program's loop.
    """
    registry = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=server.url,
            token=server.token(),
            ca_path=server.ca,
            insecure=server.ca is None,
        )

    async def group_event(*, namespace: str | None, name: str, **_: Any) -> None:
        post(groups.wake, namespace or "", name)

    async def owned_event(
        *, namespace: str | None, name: str, meta: kopf.Meta, resource: kopf.Resource, **event: Any
    ) -> None:
        version = "" if event["type"] == "DELETED" else meta["resourceVersion"]
        group = meta.labels[GROUP_LABEL]
        post(groups.note, resource.kind or "", namespace or "", name, group, version)

    async def declared_event(
        *, namespace: str | None, name: str, param: Any = None, event: kopf.RawEvent, **_: Any
    ) -> None:
        if event["type"] == "DELETED":
            post(objects.deleted, param, namespace or "", name)
        else:
            post(objects.changed, param, event["object"])

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(group_event)
    for kind, plural in PLURALS.items():
        kopf.on.event(GROUP, VERSION, plural, registry=registry, param=kind)(declared_event)
    for group, version, plural in OWNED:
        kopf.on.event(
            group, version, plural, registry=registry, labels={GROUP_LABEL: kopf.PRESENT}
        )(owned_event)
    return registry


def settings_of(namespaces: tuple[str, ...]) -> kopf.OperatorSettings:
    """Return kopf's settings; by default kopf waits for minutes where a group needs a reaction
    within seconds.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 10
    settings.networking.connect_timeout = 3
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2)
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 5
    settings.execution.default_backoff = 5
    settings.process.ultimate_exiting_timeout = None
    settings.scanning.disabled = bool(namespaces)  # then no list of namespaces or CRDs is needed
    return settings
