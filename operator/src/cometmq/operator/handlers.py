# SPDX-License-Identifier: Apache-2.0
"""What kopf calls: handlers that only wake passes, its indexes, its settings, login and probe.

kopf runs in a thread and a loop of its own: it takes over the signals of the main thread, and ends
every task of its loop when it stops. `kopf run -m cometmq.operator.handlers --standalone` works,
too: see `configure`. A handler never acts on a body, because kopf calls it once for each version of
an object, also for those that are old by then.
"""

import asyncio
import contextvars
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import kopf
import msgspec

from cometmq.operator.acting import Acting, Operator
from cometmq.operator.api import FIELD_MANAGER, ApiServer
from cometmq.operator.api_types.broker_group import GROUP, KIND, PLURAL, VERSION
from cometmq.operator.api_types.topics_and_groups import PLURALS
from cometmq.operator.broker_groups.group import GROUP_LABEL
from cometmq.operator.broker_groups.master_service import PodAddress
from cometmq.operator.leader import LeadershipLost
from cometmq.operator.managed import FINALIZER
from cometmq.operator.settings import PREFIX, OperatorSettings
from cometmq.operator.topics_and_groups.item import Claim, Entry, declared_of
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime import logging
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load

T = TypeVar("T")

OWNED: Final = (
    ("", "v1", "configmaps"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("", "v1", "pods"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("", "v1", "services"),
    ("", "v1", "serviceaccounts"),
    ("apps", "v1", "statefulsets"),
)
"""Kinds of objects that belong to groups, as their labels show."""
DECLARED: Final = tuple((GROUP, VERSION, plural) for plural in PLURALS.values())
ANSWER_S: Final = 5.0
REGISTRY: Final = kopf.get_default_registry()
"""Where kopf's decorators put the handlers of this module, and `kopf run` finds them."""


def tell(memo: Any, call: Callable[..., None], *given: Any) -> None:
    """Make a call in the loop of the passes, without waiting for it."""
    acting: Acting = memo.acting
    acting.groups.context.posting = contextvars.copy_context()
    acting.loop.call_soon_threadsafe(call, *given)


async def ask(memo: Any, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work in the loop of the passes."""
    future = asyncio.run_coroutine_threadsafe(work, memo.acting.loop)
    return await asyncio.wrap_future(future)


# ---- settings --------------------------------------------------------------------------------


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no copy of specs in annotations: the server refuses objects with more than 256 KiB of
    them, and no handler asks what has changed.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, memo: Any, **given: Any) -> None:
    settings.peering.standalone = True
    settings.persistence.finalizer = FINALIZER
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix=f"operator.{GROUP}", v1=False
    )
    settings.posting.worker_limit = 4
    settings.posting.reporting_component = FIELD_MANAGER
    settings.posting.event_name_prefix = f"{FIELD_MANAGER}-"
    settings.networking.request_timeout = 10.0
    settings.networking.connect_timeout = 3.0
    settings.networking.error_backoffs = (0.5, 1.0, 2.0)
    settings.execution.default_backoff = 5.0
    settings.queueing.exit_timeout = 0.5
    for resource in OWNED:
        settings.watching.label_selectors[resource] = GROUP_LABEL
    if "acting" not in memo:
        await _start_alone(memo)
    memo.acting.use(claims=given["claims"], pods=given["pods"])


async def _start_alone(memo: Any) -> None:
    """Under `kopf run`: wait for the Lease, and start the tasks in kopf's own loop."""
    log = logging.get("operator")
    settings = load(OperatorSettings, prefix=PREFIX).value
    memo.operator = await Operator(settings, log=log, clock=SystemClock()).__aenter__()
    await memo.operator.leadership.acquire()
    memo.acting = memo.operator.act()

    async def keep() -> None:
        try:
            await memo.operator.leadership.keep()
        except LeadershipLost as lost:
            log.warning("leader.lost", error=str(lost))
            await memo.acting.close()
            signal.raise_signal(signal.SIGTERM)

    memo.tasks = TaskSet(log)
    memo.tasks.spawn(keep(), name="operator-lease")


@kopf.on.cleanup()
async def stop_alone(memo: Any, **_: Any) -> None:
    if "operator" in memo:
        await memo.tasks.close()
        await memo.acting.close()
        await memo.operator.__aexit__()


@kopf.on.login()
async def login(memo: Any, **_: Any) -> kopf.ConnectionInfo:
    server: ApiServer = memo.acting.server
    return kopf.ConnectionInfo(
        server=server.url,
        ca_path=server.ca,
        insecure=server.ca is None,
        scheme="Bearer",
        token=server.read_token(),
    )


@kopf.on.probe()
async def groups(memo: Any, **_: Any) -> int:
    """Answer with the number of groups, as the loop of the passes knows it."""

    async def count() -> int:
        return len(memo.acting.groups)

    async with asyncio.timeout(ANSWER_S):
        return await ask(memo, count())


# ---- indexes ---------------------------------------------------------------------------------


def _is_staying(meta: kopf.Meta, **_: Any) -> bool:
    return "deletionTimestamp" not in meta


def claims(body: kopf.Body, **_: Any) -> dict[Entry, Claim]:
    """Index the objects that declare topics and consumer groups by what they declare."""
    try:
        claim = declared_of(body["kind"], body).claim
    except msgspec.ValidationError:  # of another version of the definition: its pass reports it
        return {}
    return {claim.entry: claim}


@kopf.index("", "v1", "pods", labels={GROUP_LABEL: kopf.PRESENT})
def pods(
    meta: kopf.Meta, status: kopf.Status, spec: kopf.Spec, **_: Any
) -> dict[tuple[str, str], PodAddress]:
    """Index the pods by namespace and group."""
    address = PodAddress(
        meta["name"], meta["uid"], status.get("podIP", ""), spec.get("nodeName", "")
    )
    return {(meta["namespace"], meta["labels"][GROUP_LABEL]): address}


# ---- events ----------------------------------------------------------------------------------


@kopf.on.event(GROUP, VERSION, PLURAL)
async def group_event(memo: Any, namespace: str | None, name: str, **_: Any) -> None:
    tell(memo, memo.acting.groups.wake, (KIND, namespace, name))


@kopf.on.delete(GROUP, VERSION, PLURAL)
async def group_deleted(memo: Any, namespace: str | None, name: str, **_: Any) -> None:
    await ask(memo, memo.acting.groups.until_let_go((KIND, namespace, name)))


async def declared_event(memo: Any, type: str, body: kopf.Body, **_: Any) -> None:  # noqa: A002
    metadata = body["metadata"]
    key = body["kind"], metadata["namespace"], metadata["name"]
    entry = next(iter(claims(body)), key)
    if type == "DELETED":
        tell(memo, memo.acting.objects.deleted, key, entry)
    else:
        parts = ("uid", "generation", "annotations", "finalizers", "deletionTimestamp")
        tell(memo, memo.acting.objects.changed, key, entry, tuple(map(metadata.get, parts)))


async def declared_deleted(memo: Any, body: kopf.Body, **_: Any) -> None:
    key = body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]
    await ask(memo, memo.acting.objects.until_let_go(key))


def _deletes_entry(spec: kopf.Spec, **_: Any) -> bool:
    return spec.get("deletionPolicy") == "Delete"


async def owned_event(
    memo: Any,
    type: str,  # noqa: A002
    body: kopf.Body,
    labels: kopf.Labels,
    **_: Any,
) -> None:
    metadata = body["metadata"]
    version = "" if type == "DELETED" else metadata["resourceVersion"]
    place = metadata["namespace"], metadata["name"], labels[GROUP_LABEL]
    tell(memo, memo.acting.groups.note, body["kind"], *place, version)


for _resource in DECLARED:
    kopf.index(*_resource, when=_is_staying)(claims)
    kopf.on.event(*_resource)(declared_event)
    kopf.on.delete(*_resource, when=_deletes_entry)(declared_deleted)
for _resource in OWNED:
    kopf.on.event(*_resource, labels={GROUP_LABEL: kopf.PRESENT})(owned_event)
