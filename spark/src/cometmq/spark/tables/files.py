# SPDX-License-Identifier: Apache-2.0
"""Writes files atomically: readers see either the whole file or the previous one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which replaces it unless the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with _replacing(path) as draft:
        draft.write_bytes(data)


def write_parquet(path: Path, table: "pa.Table", *, row_group_size: int | None = None) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415  # generators of documents have no Arrow

    with _replacing(path) as draft:
        pq.write_table(table, draft, compression="zstd", row_group_size=row_group_size)


def check_folder(folder: Path) -> None:
    """Create the folder if needed; raise OSError unless files can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".cometmq-lag.{os.getpid()}"
    try:
        probe.write_bytes(b"")
    finally:
        probe.unlink(missing_ok=True)
