# SPDX-License-Identifier: Apache-2.0
"""Writes rows of made-up snapshots to files as the collector does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cometmq.spark.collect.snapshot import snapshot_path
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.columns import SCHEMA_VERSION, TABLES


class Written:
    """The rows of snapshots; columns that are not given are null."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._rows: dict[int, dict[str, list[tuple[Any, ...]]]] = {
            number: {name: [] for name in TABLES} for number in ids
        }

    def add(self, snapshot_id: int, table: str, values: dict[str, Any], *, copies: int = 1) -> None:
        row = {"snapshot_id": snapshot_id, "schema_version": SCHEMA_VERSION} | values
        found = tuple(row.get(column.name) for column in TABLES[table])
        self._rows[snapshot_id][table] += [found] * copies

    def write(self, root: Path) -> None:
        for number, tables in self._rows.items():
            for name, rows in tables.items():
                path = snapshot_path(root, name, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(table_of(TABLES[name], rows), path)


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
