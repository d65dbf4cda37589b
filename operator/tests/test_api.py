# SPDX-License-Identifier: Apache-2.0
"""Missing objects, refusals, outages and answers that are none, as lightkube reports them."""

import json
import ssl
from pathlib import Path

import httpx2
import pytest

from cometmq.operator.api import ApiRefused, ApiServer, ApiUnreachable, KubeApi, in_cluster
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.certificate import self_signed_pem

POD = {"metadata": {"namespace": "mq", "name": "orders-0", "resourceVersion": "7"}}
NEW = {"kind": "Pod", **POD}


class Answers(httpx2.AsyncBaseTransport):
    """Gives the answers in order, and notes the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.tokens = []

    async def handle_async_request(self, request):
        self.requests.append(request)
        self.tokens.append(request.headers["Authorization"])
        status, body = self.answers.pop(0)
        if not status:
            raise httpx2.RemoteProtocolError("the server closed the connection")
        if isinstance(body, bytes):
            return httpx2.Response(status, content=body)
        return httpx2.Response(status, json=body)


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("old\n")
    return path


def answered(token, *answers):
    """Return a client whose server gives these answers, and the server."""
    transport = Answers(*answers)
    return KubeApi(ApiServer(host="ns", port=1, ca=None, token=token), transport), transport


async def test_a_missing_object_a_refusal_and_an_outage_differ(token):
    api, server = answered(
        token, (404, {"message": "none"}), (409, {"message": "exists"}), (503, {"message": "busy"}),
        (0, b""), (200, b"<html>"), (502, b"<html>"), (429, {"message": "later"}),
    )  # fmt: skip
    assert await api.get("Pod", "mq", "orders-0") is None
    with pytest.raises(ApiRefused, match="exists") as refused:
        await api.create(NEW)
    assert refused.value.status == 409
    for text in ("busy", "closed the connection", "malformed", "Content-Type", "later"):
        with pytest.raises(ApiUnreachable, match=text):
            await api.create(NEW)
    assert str(server.requests[1].url).startswith("https://ns:1/api/v1/namespaces/mq/pods?")


async def test_an_expired_token_is_replaced(token):
    api, server = answered(token, (200, POD), (401, {"message": "no"}), (200, POD))
    await api.get("Pod", "mq", "orders-0")
    token.write_text("new")
    await api.get("Pod", "mq", "orders-0")
    assert server.tokens == ["Bearer old", "Bearer old", "Bearer new"]


@pytest.mark.parametrize("answer", [{}, {"items": None}, {"items": [{}]}, {"items": [7]}], ids=str)
async def test_an_answer_without_objects_is_no_empty_list(token, answer):
    api, _ = answered(token, (200, answer), (200, answer))
    for ask in (api.list("Pod", "mq", {"a": "b"}), api.get("Pod", "mq", "one")):
        with pytest.raises(ApiUnreachable):
            await ask


async def test_a_deletion_names_what_it_was_based_on(token):
    api, server = answered(
        token, (200, {}), (409, {"message": "another"}), (404, {"message": "gone"})
    )
    assert await api.delete("Pod", "mq", "one", uid="u", version="7")
    wanted = {"preconditions": {"uid": "u", "resourceVersion": "7"}}
    assert json.loads(server.requests[0].content) == wanted
    assert not await api.delete("Pod", "mq", "one", uid="u")
    assert await api.delete("Pod", "mq", "one")


async def test_a_status_is_applied_as_a_whole(token):
    api, server = answered(token, (200, POD))
    await api.apply({**NEW, "status": {"phase": "Running"}}, part="Status")
    (request,) = server.requests
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.url.path == "/api/v1/namespaces/mq/pods/orders-0/status"
    assert dict(request.url.params) == {"force": "true", "fieldManager": "cometmq-operator"}


async def test_nothing_is_written_once_the_lease_may_be_anothers(token):
    api, server = answered(token, (200, POD))
    api.may_write = lambda: False
    for write in (
        api.create(NEW), api.apply(NEW), api.patch("Pod", "mq", "one", {}), api.replace(NEW),
        api.delete("Pod", "mq", "one"),
    ):  # fmt: skip
        with pytest.raises(ApiUnreachable, match="no longer holds"):
            await write
    assert server.requests == []
    assert await api.get("Pod", "mq", "orders-0") == POD


async def test_requests_are_counted_by_their_status(token, unused_tcp_port):
    server = ApiServer(host="127.0.0.1", port=unused_tcp_port, ca=None, token=token)
    async with KubeApi(server) as api:
        with pytest.raises(ApiUnreachable):
            await api.get("Pod", "mq", "one")
        assert api.requests == {("GET", "none"): 1}


def test_a_server_is_verified_by_the_clusters_certificate(tmp_path, token):
    ca = tmp_path / "ca.crt"
    ca.write_text(self_signed_pem("kubernetes.default.svc"), encoding="ascii")
    KubeApi(ApiServer(host="ns", port=1, ca=ca, token=token))
    ca.write_text("none")
    with pytest.raises(ssl.SSLError):
        KubeApi(ApiServer(host="ns", port=1, ca=ca, token=token))


def test_outside_a_pod_the_reason_is_named(tmp_path):
    with pytest.raises(SettingsError, match="needs a pod with a service account"):
        in_cluster(Path(tmp_path))
