# SPDX-License-Identifier: Apache-2.0
"""Runs a shell command for a message: its standard input is the body, variables describe it."""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from cometmq.client import MessageExt
from cometmq.client.errors import ClientError

OUTPUT_BYTES_MAX: Final = 4 << 20
_VALUE_BYTES_MAX: Final = 64 << 10
"""Longer values are left out, because the system limits the size of an environment."""


async def output(command: str, message: MessageExt, prefix: str, within_s: float) -> bytes:
    """Return what a command prints; raise ClientError if it fails, prints too much, or is late."""
    try:
        async with asyncio.timeout(within_s):
            status, data = await _ran(command, message, facts_of(message, prefix), is_read=True)
    except TimeoutError as error:
        raise ClientError(f"the command was not done after {within_s:.1f} s") from error
    if status:
        raise ClientError(f"the command ended with the exit status {status}")
    return data


async def status(command: str, message: MessageExt, prefix: str) -> int:
    """Run a command to its end, with this program's output; return its exit status.

    A negative status is the number of the signal that ended it.
    """
    facts = facts_of(message, prefix) | {
        f"{prefix}BROKER": message.queue.broker_name,
        f"{prefix}QUEUE": str(message.queue.queue_id),
        f"{prefix}OFFSET": str(message.queue_offset),
        f"{prefix}RETRIES": str(message.reconsume_times),
    }
    return (await _ran(command, message, facts, is_read=False))[0]


async def _ran(
    command: str, message: MessageExt, facts: Mapping[str, str], *, is_read: bool
) -> tuple[int, bytes]:
    """Run a command; end it with its children if this call is cancelled."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE if is_read else None,
        env={**os.environ, **facts},  # noqa: TID251  # of a child
        start_new_session=True,  # it can be ended with its children
    )
    try:
        data = await _conversation(process, message.body)
        return await process.wait(), data
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def _conversation(process: asyncio.subprocess.Process, body: bytes) -> bytes:
    """Write the body and read the output, both at once; raise ClientError if it is too long."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None

    async def write() -> None:
        if stdin.is_closing():  # it has ended; uvloop refuses the write then
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it does not read its input
            stdin.write(body)
            await stdin.drain()
            stdin.close()  # no wait_closed(): uvloop logs an error if that wait is cancelled

    if stdout is None:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            await process.wait()
            writing.cancel()
        return b""
    found = bytearray()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        while len(found) <= OUTPUT_BYTES_MAX and (chunk := await stdout.read(1 << 16)):
            found += chunk
        writing.cancel()
    if len(found) > OUTPUT_BYTES_MAX:
        raise ClientError(f"the command printed more than {OUTPUT_BYTES_MAX:,} bytes")
    return bytes(found)


def facts_of(message: MessageExt, prefix: str) -> dict[str, str]:
    """Return the variables that describe a message, without names and values that the system does
    not allow.
    """
    facts = {
        "ID": message.message_id,
        "TOPIC": message.topic,
        "TAG": message.tag or "",
        "KEYS": " ".join(it for it in message.keys if it != message.message_id),
        **{f"PROPERTY_{name}": value for name, value in message.user_properties.items()},
    }
    return {
        prefix + name: value
        for name, value in facts.items()
        if name.isidentifier() and "\0" not in value and len(value.encode()) < _VALUE_BYTES_MAX
    }
