# SPDX-License-Identifier: Apache-2.0
"""Checks that the history's files are readable, have the right columns, and match their hashes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.spark.collect.writer import RAW, WRITE_ORDER, hour_folder
from cometmq.spark.lag.history.compact import Manifest, hash_of, read_manifest
from cometmq.spark.lag.history.parquet import HistoryError, check
from cometmq.spark.lag.history.snapshots import HOUR, MANIFESTS, History
from cometmq.spark.tables.columns import TABLES

FOUND_MAX: Final = 100
"""Verification stops after this many findings, since more would not help."""


def verify(history: History) -> list[str]:
    """Check the history; return one line per problem."""
    found: list[str] = []
    for finding in _findings(history):
        found.append(finding)
        if len(found) == FOUND_MAX:
            break
    return found


def _findings(history: History) -> Iterator[str]:
    for dataset in (RAW, HOUR):
        for name in WRITE_ORDER:
            for path in sorted((history.root / dataset / name).glob("dt=*/hh=*/*.parquet")):
                yield from _of_file(path, name)
    for hour in history.raw_hours():
        yield from _of_snapshots(history.root, hour_folder(hour))
    for path in sorted((history.root / MANIFESTS).glob("hour=*.json")):
        yield from _of_manifest(history.root, path)


def _of_file(path: Path, name: str) -> Iterator[str]:
    try:
        check(path)
    except HistoryError as error:
        yield str(error)
        return
    known = set(pq.read_schema(path).names)
    missing = [it.name for it in TABLES[name] if it.required and it.name not in known]
    if missing:
        yield f"{path}: required columns are missing: {', '.join(missing)}"


def _of_snapshots(root: Path, folder: str) -> Iterator[str]:
    """Report snapshots that their last table marks as complete, but that lack other tables."""
    *others, last = WRITE_ORDER
    for path in sorted((root / RAW / last / folder).glob("snap-*.parquet")):
        for name in others:
            if not (root / RAW / name / folder / path.name).exists():
                yield f"{path}: the table {name} of this snapshot is missing"


def _of_manifest(root: Path, path: Path) -> Iterator[str]:
    try:
        manifest: Manifest = read_manifest(path)
    except UNREADABLE_JSON as error:
        yield f"{path}: not a valid manifest: {error}"
        return
    for name, digest in manifest.sha256.items():
        file = root / HOUR / name / hour_folder(manifest.hour) / "part-0.parquet"
        if not file.exists():
            yield f"{file}: the file is missing, but {path.name} lists it"
        elif hash_of(file) != digest:
            yield f"{file}: the content has changed: its SHA-256 differs from {path.name}"
