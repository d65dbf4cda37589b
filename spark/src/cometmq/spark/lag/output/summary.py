# SPDX-License-Identifier: Apache-2.0
"""The statements about a report, computed once for the HTML and the Markdown form."""

from collections.abc import Sequence

import msgspec

from cometmq.spark.lag.columns import Report
from cometmq.spark.lag.output.findings import Finding, findings, verdict
from cometmq.spark.lag.output.sections import Section, all_sections


class Summary(msgspec.Struct, frozen=True):
    report: Report
    verdict: str
    findings: Sequence[Finding]
    sections: Sequence[Section]


def summary_of(report: Report) -> Summary:
    return Summary(report, verdict(report), findings(report), list(all_sections(report)))
