# SPDX-License-Identifier: Apache-2.0
"""Renders a report in each of its forms, and writes the files."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from cometmq.spark.collect.exposition import REPORT_METRICS
from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.output.html import html_report
from cometmq.spark.lag.output.json_form import json_report
from cometmq.spark.lag.output.markdown import markdown_report
from cometmq.spark.lag.output.prometheus import metrics_text
from cometmq.spark.lag.output.summary import Summary, summary_of
from cometmq.spark.tables.files import write_bytes

FORMS: Final[Mapping[str, tuple[str, Callable[[Summary], bytes]]]] = {
    "html": ("report.html", html_report),
    "markdown": ("report.md", markdown_report),
    "json": ("report.json", lambda summary: json_report(summary.report)),
}
"""File name and renderer by form."""


def write_report(
    report: Report, directory: Path, forms: Collection[str] = tuple(FORMS)
) -> list[Path]:
    """Render the report in the given forms; return the paths of the files."""
    summary, paths = summary_of(report), []
    for form in forms:
        name, render = FORMS[form]
        path = directory / name
        write_bytes(path, render(summary))
        paths.append(path)
    return paths


def write_textfile(report: Report, directory: Path) -> Path:
    path = directory / REPORT_METRICS
    write_bytes(path, metrics_text(report).encode())
    return path
