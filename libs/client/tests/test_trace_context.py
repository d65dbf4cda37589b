# SPDX-License-Identifier: Apache-2.0
import asyncio
import sys
from collections.abc import Mapping, MutableMapping
from importlib.machinery import ModuleSpec
from types import ModuleType

import msgspec
import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    trace_context,
)
from cometmq.client.testing import MemoryCluster
from cometmq.client.trace_context import TraceContext
from cometmq.testing.client.messages import message_ext

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OPTIONS = ProducerOptions(trace_context=True)


@pytest.fixture(autouse=True)
def _without_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide OpenTelemetry, so that each test decides whether it is installed."""
    monkeypatch.setattr(trace_context, "_telemetry", lambda: None)
    return


async def forwarded(cluster: MemoryCluster, listener_kind: str) -> list[MessageExt]:
    """Forward a traced message in a listener; return the forwarded message."""
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace_context=True)
    seen: list[TraceContext | None] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:

        async def forward(messages: list[MessageExt]) -> None:
            seen.append(trace_context.current())
            await producer.send(Message("Next", messages[0].body))
            done.set()

        def on_thread(messages: list[MessageExt]) -> None:
            seen.append(trace_context.current())
            loop.call_soon_threadsafe(done.set)

        listener = forward if listener_kind == "coroutine" else on_thread
        consumer = PushConsumer("cg", cluster.namesrv, listener=listener, options=options)
        consumer.subscribe("T")
        given = {"traceparent": PARENT, "tracestate": "a=b"}
        await producer.send(Message("T", b"x", properties=given))
        async with consumer:
            await done.wait()
    assert seen == [TraceContext(PARENT, "a=b")]
    assert trace_context.current() is None
    return cluster.messages("Next")


async def test_messages_sent_by_a_listener_join_its_trace(
    cluster: MemoryCluster,
) -> None:
    (sent,) = await forwarded(cluster, "coroutine")
    assert sent.properties["traceparent"] == PARENT
    assert sent.properties["tracestate"] == "a=b"


async def test_a_listener_on_a_thread_is_in_the_trace_too(cluster: MemoryCluster) -> None:
    assert not await forwarded(cluster, "function")


async def test_no_context_is_added_without_the_option(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context, "_telemetry", Telemetry)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    (stored,) = cluster.messages("T")
    assert "traceparent" not in stored.properties


class Telemetry:
    """A fake OpenTelemetry with a current span."""

    def inject(self, properties: MutableMapping[str, str]) -> None:
        properties["traceparent"] = "of-the-span"


async def test_the_current_span_is_sent_unless_the_application_sets_one(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_context, "_telemetry", Telemetry)
    async with Producer("pg", cluster.namesrv, options=OPTIONS) as producer:
        await producer.send(Message("A", b"x"))
        await producer.send(Message("B", b"x", properties={"traceparent": PARENT}))
        await producer.send_batch([Message("C", b"x")])
    assert [cluster.messages(topic)[0].properties["traceparent"] for topic in ("A", "B", "C")] == [
        "of-the-span",
        PARENT,
        "of-the-span",
    ]


class FakePropagator:
    """A fake of the part of OpenTelemetry's API that the client uses."""

    def inject(self, carrier: MutableMapping[str, str]) -> None:
        carrier["traceparent"] = "injected"

    def extract(self, carrier: Mapping[str, str]) -> str:
        return f"context of {carrier['traceparent']}"


def test_opentelemetry_is_used_by_its_public_names(
    monkeypatch: pytest.MonkeyPatch, cluster_free_message: MessageExt
) -> None:
    attached: list[str] = []
    context = ModuleType("opentelemetry.context")
    context.attach = lambda found: attached.append(found) or "token"  # type: ignore[attr-defined]
    context.detach = attached.append  # type: ignore[attr-defined]
    propagation = ModuleType("opentelemetry.trace.propagation.tracecontext")
    propagation.TraceContextTextMapPropagator = FakePropagator  # type: ignore[attr-defined]
    root = ModuleType("opentelemetry")
    root.__spec__ = ModuleSpec("opentelemetry", None)
    for name, module in {
        "opentelemetry": root,
        "opentelemetry.context": context,
        "opentelemetry.trace": ModuleType("opentelemetry.trace"),
        "opentelemetry.trace.propagation": ModuleType("opentelemetry.trace.propagation"),
        "opentelemetry.trace.propagation.tracecontext": propagation,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    telemetry = trace_context._Telemetry()
    monkeypatch.setattr(trace_context, "_telemetry", lambda: telemetry)
    properties: dict[str, str] = {}
    trace_context.inject(properties)
    assert properties == {"traceparent": "injected"}
    with trace_context.consuming([cluster_free_message]):
        assert attached == [f"context of {PARENT}"]
    assert attached[-1] == "token"


@pytest.fixture
def cluster_free_message() -> MessageExt:
    return msgspec.structs.replace(message_ext(0), properties={"traceparent": PARENT})
