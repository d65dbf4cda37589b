# SPDX-License-Identifier: Apache-2.0
"""What `cometmq reply` answers: an echo, a text, or the output of a shell command."""

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.cli.messaging import shell
from cometmq.cli.verbs.templates import expanded
from cometmq.client import MessageExt

VARIABLE: Final = "REQUEST_"
"""The prefix of the environment variables that describe a request to a command."""

Answer = Callable[[MessageExt, int, float], Awaitable[bytes]]
"""Returns the answer to a request, by its number and the seconds left; raises ClientError."""


async def echo(request: MessageExt, _number: int, _left_s: float) -> bytes:
    """Return the request's body."""
    return request.body


def text(body: str, *, has_templates: bool) -> Answer:
    """Return a function that answers each request with a text."""
    data = body.encode("utf-8", "surrogateescape")
    if has_templates:
        expanded(data, 1)  # raises InvalidArgument before the first request

    async def answer(_request: MessageExt, number: int, _left_s: float) -> bytes:
        return expanded(data, number) if has_templates else data

    return answer


def output_of(command: str) -> Answer:
    """Return a function that runs a shell command for each request and returns its output.

    The function raises ClientError if the command fails, prints nothing or too much, or is late.
    """

    async def answer(request: MessageExt, _number: int, left_s: float) -> bytes:
        return await shell.output(command, request, VARIABLE, left_s)

    return answer
