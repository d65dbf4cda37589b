# SPDX-License-Identifier: Apache-2.0
"""The period of the history that a page shows by default."""

import pytest

from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.cells import number
from cometmq.console.web.page import Page, Shown

HOUR_MS = 3_600_000


async def hours_shown(sites, age_ms, **given):
    """Return the hours that a page plots if the history began `age_ms` ago; None means that it is
    empty.
    """
    found = {}

    async def handler(view):
        found.update(await plots(view, [Drawing("Lag", number, {"lag": "k"})]))
        return Shown({}, "", 0)

    class Lines:
        async def lines(self, keys, begin_ms, end_ms):
            return {key: [] if age_ms is None else [(end_ms - age_ms, 1.0)] for key in keys}

    site = sites(pages=[Page("/plotted", "Plotted", "plots.html", handler)])
    site.desk.history = Lines()
    await site.log_in()
    await site.web.get("/plotted", params=given, headers={"accept": "application/json"})
    return found["hours"]


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
    assert await hours_shown(sites, age_ms, **given) == hours
