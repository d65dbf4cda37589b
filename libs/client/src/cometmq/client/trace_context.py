# SPDX-License-Identifier: Apache-2.0
"""W3C trace context in message properties: a trace goes on behind the queue.

With OpenTelemetry (its API package is enough) the current span is written into sent messages,
and listeners run in the context of their message. Without it, what a listener sends belongs to
the trace of the message that it got.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import msgspec

from cometmq.client.message import MessageExt

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"


class TraceContext(msgspec.Struct, frozen=True):
    """What the two properties of a message say."""

    trace_parent: str
    trace_state: str | None = None


_current: Final[ContextVar[TraceContext | None]] = ContextVar("cometmq_trace", default=None)


def current() -> TraceContext | None:
    """Return the context of the message that this task consumes."""
    return _current.get()


def of_message(properties: Mapping[str, str]) -> TraceContext | None:
    """Return the context that a message carries."""
    parent = properties.get(TRACE_PARENT)
    return TraceContext(parent, properties.get(TRACE_STATE)) if parent else None


def inject(properties: MutableMapping[str, str]) -> None:
    """Add the current context, unless the application has given one."""
    if TRACE_PARENT in properties:
        return
    telemetry = _telemetry()
    if telemetry is not None:
        telemetry.inject(properties)
    found = _current.get()
    if TRACE_PARENT not in properties and found is not None:
        properties[TRACE_PARENT] = found.trace_parent
        if found.trace_state:
            properties[TRACE_STATE] = found.trace_state


@contextlib.contextmanager
def consuming(messages: Sequence[MessageExt]) -> Iterator[None]:
    """Be in the context of a message; several at once have none in common."""
    found = of_message(messages[0].properties) if len(messages) == 1 else None
    telemetry = _telemetry()
    token = _current.set(found)
    attached = None
    if telemetry is not None and found is not None:
        attached = telemetry.attach(messages[0].properties)
    try:
        yield
    finally:
        if telemetry is not None and attached is not None:
            telemetry.detach(attached)
        _current.reset(token)


class _Telemetry:
    """The few calls of OpenTelemetry that are needed."""

    def __init__(self) -> None:
        """Load it, which is why nothing does before the option asks for it."""
        module = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator: Any = module.TraceContextTextMapPropagator()
        self._context: Any = importlib.import_module("opentelemetry.context")

    def inject(self, properties: MutableMapping[str, str]) -> None:
        """Write the current span's context, if there is a span."""
        self._propagator.inject(properties)

    def attach(self, properties: Mapping[str, str]) -> Any:
        """Make the context of a message the current one."""
        return self._context.attach(self._propagator.extract(properties))

    def detach(self, token: Any) -> None:
        """Make the context before it the current one again."""
        self._context.detach(token)


@cache
def _telemetry() -> _Telemetry | None:
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    return _Telemetry()
