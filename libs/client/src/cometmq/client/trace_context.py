# SPDX-License-Identifier: Apache-2.0
"""W3C trace context in message properties, so that a trace continues across the queue.

If OpenTelemetry is installed (its API package suffices), sent messages carry the current
span, and listeners run in the context of their message. Otherwise messages sent by a listener
join the trace of the message being consumed.
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
    """The two trace context properties of a message."""

    trace_parent: str
    trace_state: str | None = None


_current: Final[ContextVar[TraceContext | None]] = ContextVar("cometmq_trace", default=None)


def current() -> TraceContext | None:
    """Return the context of the message being consumed by this task."""
    return _current.get()


def of_message(properties: Mapping[str, str]) -> TraceContext | None:
    """Return the context carried by a message."""
    parent = properties.get(TRACE_PARENT)
    return TraceContext(parent, properties.get(TRACE_STATE)) if parent else None


def inject(properties: MutableMapping[str, str]) -> None:
    """Add the current context, unless the application has set one."""
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
    """Run in the context of a message; several messages have no common context."""
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
    """The few OpenTelemetry calls that the client uses."""

    def __init__(self) -> None:
        """Import OpenTelemetry here, so that nothing is imported unless the option is on."""
        module = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator: Any = module.TraceContextTextMapPropagator()
        self._context: Any = importlib.import_module("opentelemetry.context")

    def inject(self, properties: MutableMapping[str, str]) -> None:
        """Write the context of the current span, if there is one."""
        self._propagator.inject(properties)

    def attach(self, properties: Mapping[str, str]) -> Any:
        """Make the context of a message current."""
        return self._context.attach(self._propagator.extract(properties))

    def detach(self, token: Any) -> None:
        self._context.detach(token)


@cache
def _telemetry() -> _Telemetry | None:
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    return _Telemetry()
