# SPDX-License-Identifier: Apache-2.0
"""Reads the history's Parquet files; a damaged file is named in one line."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.remoting.errors import CometError
from cometmq.spark.tables.arrow import VERSION_KEY
from cometmq.spark.tables.columns import SCHEMA_VERSION


class HistoryError(CometError):
    """The history is missing, or one of its files is damaged."""


def check(path: Path) -> None:
    """Read a file's footer; raise HistoryError unless the file is Parquet of our version."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error
    version = (metadata.metadata or {}).get(VERSION_KEY)
    if version is not None and version != str(SCHEMA_VERSION).encode():
        raise HistoryError(
            f"{path}: written with table version {version.decode(errors='replace')}, this "
            f"cometmq-lag reads version {SCHEMA_VERSION}: use the cometmq-lag that wrote it"
        )


def read_whole(path: Path, **options: Any) -> pa.Table:
    """Read a complete file; raise HistoryError if any part is damaged."""
    check(path)
    try:
        return pq.read_table(path, partitioning=None, **options)
    except (pa.ArrowException, OSError) as error:
        raise _not_whole(path, error) from error


def _not_whole(path: Path, error: Exception) -> HistoryError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return HistoryError(f"{path}: not a valid Parquet file: {reason}")
