# SPDX-License-Identifier: Apache-2.0
"""Renders a report in each of its forms, and writes the files."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from cometmq.spark.collect.exposition import REPORT_METRICS
from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.output.json_form import json_report
from cometmq.spark.lag.output.page import html_report
from cometmq.spark.lag.output.prometheus import metrics_text
from cometmq.spark.tables.files import write_bytes

FORMS: Final[Mapping[str, Callable[[Report], bytes]]] = {"html": html_report, "json": json_report}


def write_report(
    report: Report, directory: Path, forms: Collection[str] = tuple(FORMS)
) -> list[Path]:
    """Write `report.FORM` for each of the forms; return the paths."""
    paths = [directory / f"report.{form}" for form in forms]
    for form, path in zip(forms, paths, strict=True):
        write_bytes(path, FORMS[form](report))
    return paths


def write_textfile(report: Report, directory: Path) -> Path:
    """Write the metrics for the node exporter; return the path."""
    path = directory / REPORT_METRICS
    write_bytes(path, metrics_text(report).encode())
    return path
