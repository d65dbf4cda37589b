# SPDX-License-Identifier: Apache-2.0
"""Exchanges captured from Java servers and their clients (tests/golden/wire/README.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class GoldenFrame(msgspec.Struct, frozen=True):
    """One captured frame, including its length word, with its decoded content."""

    frame: str
    header: dict[str, Any]
    body_text: str | None = None

    @property
    def data(self) -> bytes:
        """The bytes of the frame, including its length word."""
        return bytes.fromhex(self.frame)

    @property
    def code(self) -> int:
        """The code in the header."""
        return int(self.header["code"])

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields as strings, as the header codec returns them."""
        fields = self.header.get("extFields") or {}
        return {name: _text(value) for name, value in fields.items() if value is not None}


class Exchange(msgspec.Struct, frozen=True, rename={"sender": "from", "receiver": "to"}):
    """A request and its answer; `name` is their file and line."""

    sender: str
    receiver: str
    serialization: str
    oneway: bool
    request: GoldenFrame
    response: GoldenFrame | None
    client: str | None = None
    name: str = ""


def load_exchanges(root: Path, pattern: str = "*.jsonl") -> Iterator[Exchange]:
    """Yield the exchanges under `root` (the folder that holds `wire`), in file order."""
    decoder = msgspec.json.Decoder(Exchange)
    for path in sorted((root / "wire").glob(pattern)):
        if path.name == "ha-stream.jsonl":
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            exchange = decoder.decode(line)
            yield msgspec.structs.replace(exchange, name=f"{path.stem}:{number}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
