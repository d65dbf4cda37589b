# SPDX-License-Identifier: Apache-2.0
"""Events of the API server wake passes, also after a watch has ended, failed or become too old."""

import asyncio
import json
from unittest.mock import Mock, call

import pytest

from cometmq.client.testing.cluster import eventually
from cometmq.ha.places.http import HttpClient
from cometmq.ha.places.kube_api import Api
from cometmq.operator import watches
from cometmq.operator.api import ApiRefused, ApiUnreachable, KubeApi
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.api_types.topics_and_groups import TOPIC
from cometmq.operator.broker_groups.group import GROUP_LABEL
from cometmq.operator.watches import OWNED, watch


def event(type_, version, **metadata):
    named = {"namespace": "mq", "name": "orders", "resourceVersion": version, **metadata}
    return type_, {"metadata": named}


class FakeApi:
    """Gives each watch of one kind the next list of events; a list that ends in None fails."""

    def __init__(self, kind, *lists):
        self.kind = kind
        self.lists = list(lists)
        self.asked = []
        """Namespace, selector and version of each watch of the kind."""
        self.kinds = set()
        self.is_idle = False
        """All lists have been given, and handled."""

    async def watch(self, kind, namespace="", *, selector="", version=""):
        self.kinds.add(kind)
        if kind == self.kind:
            self.asked.append((namespace, selector, version))
            if self.lists:
                for one in self.lists.pop(0):
                    if one is None:
                        raise ApiUnreachable("410: too old")
                    yield one
                return
            self.is_idle = True
        await asyncio.Event().wait()


@pytest.fixture
def watched(monkeypatch):
    """Return a function that watches an API until it has no more events, with the calls made."""
    monkeypatch.setattr(watches, "RETRY_S", 0)

    async def run(api, *namespaces):
        groups, objects, log = Mock(), Mock(), Mock()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(watch(groups, objects, api, namespaces, log))
            await eventually(lambda: api.is_idle)
            task.cancel()
        return groups.mock_calls, objects.mock_calls, log.warning.mock_calls

    return run


async def test_a_watch_that_the_server_ends_continues_where_it_was(watched):
    api = FakeApi(KIND, [event("ADDED", "5"), event("BOOKMARK", "9")], [event("MODIFIED", "10")])
    groups, objects, warnings = await watched(api)
    assert groups == [call.wake((KIND, "mq", "orders"))] * 2
    assert api.asked[:2] == [("", "", ""), ("", "", "9")]
    assert (objects, warnings) == ([], [])
    assert api.kinds == {KIND, TOPIC, "ConsumerGroup", *OWNED}


async def test_a_watch_that_fails_starts_anew_and_is_logged_once(watched):
    api = FakeApi(KIND, [event("ADDED", "5"), None], [None], [event("ADDED", "7")])
    groups, _, warnings = await watched(api)
    assert groups == [call.wake((KIND, "mq", "orders"))] * 2
    assert [version for _, _, version in api.asked[:4]] == ["", "", "", "7"]
    (warning,) = warnings
    assert warning.args == ("watch.interrupted",)
    assert "too old" in warning.kwargs["error"]


async def test_objects_of_groups_are_watched_by_their_label_in_each_namespace(watched):
    labels = {GROUP_LABEL: "orders"}
    known = event("MODIFIED", "5", name="orders-0", labels=labels)
    gone = event("DELETED", "6", name="orders-0", labels=labels)
    api = FakeApi("Pod", [known], [gone])
    groups, _, _ = await watched(api, "a", "b")
    assert {one[:2] for one in api.asked} == {("a", GROUP_LABEL), ("b", GROUP_LABEL)}
    assert groups == [
        call.note("Pod", "mq", "orders-0", "orders", "5"),
        call.note("Pod", "mq", "orders-0", "orders", ""),
    ]


async def test_declared_objects_are_noted_and_forgotten(watched):
    added = event("ADDED", "5")
    api = FakeApi(TOPIC, [added, event("DELETED", "6")])
    _, objects, _ = await watched(api)
    assert objects == [call.changed(TOPIC, added[1]), call.deleted(TOPIC, "mq", "orders")]


class Answers:
    """A server that gives the answers in order, over plain HTTP, and notes the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0]))
        self.requests.append(head)
        status, body = self.answers.pop(0)
        if status:
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            start = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\nConnection: close\r\n"
            writer.write(start.encode() + b"\r\n" + text)
        writer.close()


@pytest.fixture
async def answered():
    """Return a function that makes a client whose server gives these answers."""
    servers = []

    async def start(*answers, token=lambda: "t"):
        server = Answers(*answers)
        servers.append(await asyncio.start_server(server.serve, "127.0.0.1", 0))
        port = servers[-1].sockets[0].getsockname()[1]
        return server, KubeApi(Api(HttpClient("127.0.0.1", port), token))

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


async def test_a_missing_object_a_refusal_and_an_outage_differ(answered):
    server, api = await answered(
        (404, {}), (409, {"message": "exists"}), (503, {"message": "busy"}), (0, b""),
        (200, b"<html>"),
    )  # fmt: skip
    assert await api.get("Pod", "mq", "orders-0") is None
    with pytest.raises(ApiRefused, match="exists") as refused:
        await api.create("Pod", "mq", {})
    assert refused.value.status == 409
    for text in ("busy", "closed the connection", "<html>"):
        with pytest.raises(ApiUnreachable, match=text):
            await api.create("Pod", "mq", {})
    assert api.requests == {
        ("GET", "404"): 1, ("POST", "409"): 1, ("POST", "503"): 1, ("POST", "none"): 1,
        ("POST", "200"): 1,
    }  # fmt: skip
    assert server.requests[1].startswith("POST /api/v1/namespaces/mq/pods HTTP/1.1\r\n")


async def test_an_expired_token_is_replaced_with_the_next_request(answered):
    tokens = iter(["old", "new"])
    server, api = await answered(
        (401, {"message": "Unauthorized"}), (200, {}), token=lambda: next(tokens)
    )
    with pytest.raises(ApiRefused, match="Unauthorized"):
        await api.namespace("mq")
    assert await api.namespace("mq") == {}
    assert ["Bearer new" in one for one in server.requests] == [False, True]


async def test_a_watch_reports_its_events_and_its_failure(answered):
    objects = [{"metadata": {"name": one, "resourceVersion": "7"}} for one in "ab"]
    lines = [json.dumps({"type": "ADDED", "object": one}) for one in objects]
    lines.append(json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}))
    server, api = await answered((200, "\n".join([*lines, ""]).encode()), (403, {"message": "no"}))
    events = api.watch("Topic", selector="a=b", version="7")
    found = [await anext(events) for _ in range(2)]
    assert found == [("ADDED", one) for one in objects]
    with pytest.raises(ApiUnreachable, match="too old"):
        await anext(events)
    start = "GET /apis/cometmq.io/v1alpha1/topics?watch=1&"
    assert server.requests[0].startswith(start)
    assert "&resourceVersion=7" in server.requests[0]
    assert "labelSelector=a%3Db" in server.requests[0]
    with pytest.raises(ApiUnreachable, match="403"):
        await anext(api.watch("Topic"))


@pytest.mark.parametrize("answer", [{}, {"items": None}, {"items": [{}]}, {"items": [7]}], ids=str)
async def test_an_answer_without_objects_is_no_empty_list(answered, answer):
    _, api = await answered(*[(200, answer)] * 3)
    for ask in (api.list_all("Topic"), api.list("Pod", "mq", "a=b"), api.get("Pod", "mq", "one")):
        with pytest.raises(ApiUnreachable, match="the answer cannot be read"):
            await ask


async def test_an_event_without_a_version_ends_the_watch(answered):
    _, api = await answered((200, b'{"type": "ADDED", "object": {"metadata": {}}}\n'))
    with pytest.raises(ApiUnreachable, match="resourceVersion"):
        await anext(api.watch("Topic"))
