# SPDX-License-Identifier: Apache-2.0
"""Every method of the clients refuses texts that UTF-8 cannot encode with an error of ours."""

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientOptions,
    InvalidArgument,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    SessionCredentials,
    SubscriptionGroupConfig,
    TopicConfig,
)
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.errors import CometError

HALF = "\ud83d"  # as in text that was decoded with surrogateescape
QUEUE = MessageQueue("T", "broker-a", 0)
VALUES = {
    "str": "T", "int": 1, "bool": True, "MessageQueue": QUEUE, "Message": Message("T", b"x"),
    "SubscriptionGroupConfig": SubscriptionGroupConfig(group_name="cg"),
    "TopicConfig": TopicConfig(topic_name="T"), "Iterable[str]": ["T"], "bytes": b"x",
}  # fmt: skip
HALVES = {
    "str": HALF, "MessageQueue": MessageQueue(HALF, "broker-a", 0),
    "Message": Message("T", b"x", keys=[HALF]), "TopicConfig": TopicConfig(topic_name=HALF),
    "SubscriptionGroupConfig": SubscriptionGroupConfig(group_name=HALF), "Iterable[str]": [HALF],
}  # fmt: skip
LOCAL = {"add_hook", "attached", "close", "start", "use_namesrv", "call", "damaged"}


def kind_of(annotation: Any) -> str:
    text = inspect.formatannotation(annotation).replace(" | None", "")
    return text.replace("collections.abc.", "").rpartition(".")[2] if "[" not in text else text


def calls_of(target: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the public methods, once for each parameter with a text that cannot be sent."""
    for name, method in inspect.getmembers(target, callable):
        if name.startswith("_") or name in LOCAL or inspect.isclass(method):
            continue
        kinds = {
            it.name: kind_of(it.annotation).replace("collections.abc.", "")
            for it in inspect.signature(method).parameters.values()
            if it.default is inspect.Parameter.empty or kind_of(it.annotation) in HALVES
        }
        if kinds.keys() and set(kinds.values()) <= VALUES.keys():
            for bad in (it for it in kinds if kinds[it] in HALVES):
                values = {it: VALUES[kinds[it]] for it in kinds}
                yield name, values | {bad: HALVES[kinds[bad]]}


async def test_every_method_refuses_a_text_that_cannot_be_sent(cluster: MemoryCluster) -> None:
    count = 0
    async with (
        AdminClient(cluster.namesrv) as admin,
        Producer("pg", cluster.namesrv) as producer,
        PullConsumer("cg", cluster.namesrv) as puller,
        LitePullConsumer("cg2", cluster.namesrv) as reader,
    ):
        broker = (await admin.masters())["broker-a"]
        for target in (admin, admin.namesrv, broker, producer, puller, reader):
            for name, values in calls_of(target):
                count += 1
                try:
                    found = getattr(target, name)(**values)
                    if isinstance(found, AsyncIterator):
                        found = anext(found)
                    if inspect.isawaitable(found):
                        await found
                except (CometError, StopAsyncIteration) as error:
                    str(error).encode()
    assert count > 100


@pytest.mark.parametrize(
    "options",
    [
        ClientOptions(instance_name=HALF),
        ClientOptions(namesrv=HALF),
        ClientOptions(credentials=SessionCredentials(HALF, "secret")),
    ],
)
def test_options_with_such_a_text_are_refused(options: ClientOptions) -> None:
    with pytest.raises(InvalidArgument):
        AdminClient("" if options.namesrv else "127.0.0.1:9876", options=options)
