# SPDX-License-Identifier: Apache-2.0
"""Fetches a whole answer over HTTP, within a time and a number of bytes."""

from time import monotonic
from urllib.request import Request, urlopen

_CHUNK_BYTES = 64 * 1024


def fetch(request: str | Request, *, timeout_s: float, bytes_max: int) -> bytes:
    """Return the body of the answer; blocks.

    Raise OSError (HTTPError for a refusal) or HTTPException if there is no whole answer in time,
    and ValueError if it has more than `bytes_max` bytes. The time is for the whole answer, but each
    address of a name, each redirect and the head may take it again.
    """
    end_s = monotonic() + timeout_s
    body = bytearray()
    with urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # the callers check the scheme
        while chunk := answer.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > bytes_max:
                raise ValueError(f"the answer has more than {bytes_max:,} bytes")
            if monotonic() > end_s:  # the time limit of urlopen is for each read
                raise TimeoutError(f"no whole answer within {timeout_s:g} s")
    return bytes(body)
