# SPDX-License-Identifier: Apache-2.0
"""Random sequences of inputs for a `ScriptedBroker`: requests as clients encode them, split at
random points.
"""

import json
import random
import struct
from typing import Any, NamedTuple


def frame(code: int, ext: dict[str, str], body: bytes = b"", **options: Any) -> bytes:
    """Return a request as official clients encode it, in JSON or binary form."""
    opaque, flag = options.get("opaque", 1), options.get("flag", 0)
    if options.get("is_binary"):
        entries = b"".join(
            struct.pack(">H", len(k.encode())) + k.encode() + struct.pack(">I", len(v.encode()))
            + v.encode()
            for k, v in ext.items()
        )  # fmt: skip
        head = struct.pack(">hBhiiii", code, 0, 401, opaque, flag, 0, len(entries)) + entries
    else:
        said = {
            "code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 401,
        }  # fmt: skip
        is_ascii = options.get("is_ascii", True)
        head = json.dumps(said, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    word = (1 << 24 if options.get("is_binary") else 0) | len(head)
    return struct.pack(">II", 4 + len(head) + len(body), word) + head + body


class Step(NamedTuple):
    """One input; a test that compares two brokers passes it to both."""

    action: str
    peer: int = 0
    data: bytes = b""
    amount: int = 0


class RandomScript:
    """A random sequence of steps, determined by a seed; `oddity` scales the share of unusual
    steps.
    """

    def __init__(self, seed: int, *, oddity: float) -> None:
        self.rng = random.Random(seed)  # repeats a run, hides nothing
        self.oddity = oddity
        self.number = 0
        self.steps: list[Step] = []

    def odd(self, share: float) -> bool:
        return self.rng.random() < share * self.oddity

    def cut(self, peer: int, data: bytes, *, count_max: int) -> None:
        """Add steps that pass the bytes to a peer in up to `count_max` chunks,
        split at random points.
        """
        rng = self.rng
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(count_max)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < end:
                self.steps.append(Step("receive", peer, data[start:end]))
