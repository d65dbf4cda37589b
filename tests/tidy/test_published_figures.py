# SPDX-License-Identifier: Apache-2.0
"""The pages show the figures of the last published benchmark, and claim nothing beyond them."""

from pathlib import Path
from typing import Final

import page
import report

README: Final = page.README.read_text(encoding="utf-8")
PUBLISHED: Final = report.load(report.BASELINE)
INTRODUCTION: Final = README.partition("\n## ")[0]


def ratio(name: str) -> float:
    assert PUBLISHED is not None
    return float(PUBLISHED["ratios"][name])


def between_marks(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    begin, end = (f"<!-- the table of make bench: {side} -->\n" for side in ("begin", "end"))
    return text.partition(begin)[2].partition(end)[0].rstrip("\n")


def test_the_tables_are_those_of_the_last_published_run() -> None:
    """`make bench ARGS=--publish` writes them; figures must not be edited by hand."""
    assert PUBLISHED is not None
    assert between_marks(page.README) == page.summary(PUBLISHED)
    assert between_marks(page.PAGE) == page.markdown(PUBLISHED)


def test_the_introduction_claims_what_the_run_shows() -> None:
    sends = ("send-64x1", "send-8x32", "send-1k", "send-1x1")
    claims = {
        "less than a twentieth of the memory": ratio("million.anonymous_bytes") < 1 / 20,
        "starts in less than a quarter of the time": ratio("start.start_s") < 1 / 4,
        "accepts more sends per second": all(ratio(f"{it}.messages_per_s") > 1 for it in sends),
        "With its native path it also serves more pulls": ratio("pull.messages_per_s") > 1,
    }
    assert [words for words in claims if words not in INTRODUCTION] == []
    assert [words for words, is_shown in claims.items() if not is_shown] == []
