# SPDX-License-Identifier: Apache-2.0
"""Requests to the servers of tests may take long: the machine may be loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cometmq.remoting.command import Response
from cometmq.remoting.transport.client import RemotingClient

PATIENCE_MS: Final = 60_000
SHORTENED_MS: Final = 1_000
_patient: Final[set[str]] = set()
_invoke = RemotingClient.invoke


@contextmanager
def patience(*addresses: str) -> Iterator[None]:
    """Give this process's requests to these addresses more time than users give theirs, unless a
    test has shortened it.
    """
    setattr(RemotingClient, "invoke", _invoke_patiently)  # noqa: B010  # mypy
    _patient.update(addresses)
    yield
    _patient.difference_update(addresses)


async def _invoke_patiently(
    client: RemotingClient, address: str, *args: Any, timeout_ms: int, **more: Any
) -> Response:
    if address in _patient and timeout_ms > SHORTENED_MS:
        timeout_ms = max(timeout_ms, PATIENCE_MS)
    return await _invoke(client, address, *args, timeout_ms=timeout_ms, **more)
