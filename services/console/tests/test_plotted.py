# SPDX-License-Identifier: Apache-2.0
"""The period of the history that a page shows by default."""

import pytest

from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.page import Page, Shown
from cometmq.insight.words import count

HOUR_MS = 3_600_000


async def plotted(sites, age_ms, **given):
    """Return what a page plots if the history began `age_ms` ago, and the page; None means that
    the history is empty.
    """
    found = {}
    drawings = [Drawing("Lag", count, {"lag": "k"}), Drawing("Age", count, {"age": "none"})]

    async def handler(view):
        found.update(await plots(view, drawings))
        return Shown({}, "", 0, extra=found)

    class Lines:
        async def lines(self, keys, begin_ms, end_ms):
            points = [] if age_ms is None else [(end_ms - age_ms, 1.0)]
            return {key: [] if key == "none" else points for key in keys}

    site = sites(pages=[Page("/plotted", "Plotted", "plots.html", handler)])
    site.desk.history = Lines()
    await site.log_in()
    return found, (await site.web.get("/plotted", params=given)).text


@pytest.mark.parametrize(
    ("age_ms", "given", "hours"),
    [
        (HOUR_MS // 2, {}, 1),
        (3 * HOUR_MS, {}, 6),
        (None, {}, 6),
        (HOUR_MS // 2, {"hours": 24}, 24),
        (HOUR_MS // 2, {"hours": 6}, 6),
    ],
)
async def test_a_young_history_is_shown_closer(sites, age_ms, given, hours):
    found, _ = await plotted(sites, age_ms, **given)
    assert found["hours"] == hours


@pytest.mark.parametrize(("age_ms", "drawn", "folded"), [(1, 1, "Age"), (None, 0, "Lag, Age")])
async def test_plots_without_figures_are_one_line(sites, age_ms, drawn, folded):
    _, page = await plotted(sites, age_ms)
    assert page.count('<svg class="plot"') == drawn
    assert page.count(f"period: {folded}.") == 1
