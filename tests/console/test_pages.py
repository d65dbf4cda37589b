# SPDX-License-Identifier: Apache-2.0
"""Every page: accessible, within its width, and without an error, in each theme and width."""

import json
import urllib.request

import pytest

from cometmq.console.pages import ACTIONS, PAGES

from . import axe
from .conftest import LONG

RULES = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map(
  (it) => it.id + ": " + it.nodes.map((node) => node.html.slice(0, 200)).join(" | ")))
"""
OVERLAPS = """
(() => {
  const shown = [...document.querySelectorAll("main :is(button, input, select, .button, .hint)")]
    .filter((it) => it.checkVisibility() && !it.classList.contains("visually-hidden"))
    .map((it) => [it, it.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return shown.flatMap(([one, a], at) => shown.slice(at + 1)
    .filter(([other, b]) => meet(a, b) && !one.contains(other) && !other.contains(one))
    .map(([other]) => `${one.outerHTML.slice(0, 100)} overlaps ${other.outerHTML.slice(0, 100)}`));
})()
"""
APART = """
(() => {
  const middle = ({top, height}) => top + height / 2;
  return [...document.querySelectorAll("label.check")]
    .map((it) => [it, it.getBoundingClientRect(), it.firstElementChild.getBoundingClientRect()])
    .filter(([it, all, box]) => it.checkVisibility() && Math.abs(middle(all) - middle(box)) > 4)
    .map(([it]) => `${it.outerHTML.slice(0, 200)} is not beside its box`);
})()
"""
CUT = """
[...document.querySelectorAll("main .scroll tbody a")]
  .filter((it) => innerWidth > 1000
    && it.getBoundingClientRect().right > it.closest(".scroll").getBoundingClientRect().right)
  .map((it) => `${it.outerHTML.slice(0, 200)} is beyond the edge of its table`)
"""
SIDEWAYS = """
[...document.querySelectorAll("main .scroll")]
  .filter((it) => innerWidth > 1000 && it.scrollWidth > it.clientWidth)
  .map((it) => `${it.getAttribute("aria-label")}: ${it.scrollWidth} px on ${it.clientWidth}`)
"""
OVERFLOWS = """
[...document.querySelectorAll("main :is(th, td)")]
  .filter((it) => it.scrollWidth > it.clientWidth + 1)
  .map((it) => `${it.outerHTML.slice(0, 200)} is wider than its cell`)
"""
TALL = """
[...document.querySelectorAll("main input")].filter((it) => it.getBoundingClientRect().height > 50)
  .map((it) => `${it.outerHTML.slice(0, 200)} is taller than a line`)
"""
DETAILS = (
    "/login", "/nothing", "/topic?name=orders", "/group?name=billing", "/messages?topic=orders",
    f"/messages?topic={LONG}", "/messages?topic=orders&since=2h",
    f"/dead-letters/group?group={LONG}", f"/group?name={LONG}",
    "/topic/create", "/topic/alter?topic=orders&read_queues=2&perm=r", "/topic/delete?topic=orders",
    "/topic/trim?topic=orders&before=end",
    "/group/create", "/group/reset?group=billing&topic=orders&to=first",
    "/group/alter?group=billing", "/group/delete?group=billing", "/account/alter",
    "/definitions/import",
    "/topic/analysis?name=orders",
    "/dead-letters/group?group=billing", "/dead-letters/replay?group=billing",
    "/runbook?name=disk-full.md", "/topic/send?name=orders&body=text",
    "/accounts?who=shop-web&may=send&subject=orders", "/account/delete?name=shop-web",
    "/group/member?name=billing&client=gone",
    "/client/disconnect?client=gone", "/brokers/settings", "/broker?name={broker}",
    "/broker/settings?name={broker}",
    "/broker/setting?name={broker}&key=fileReservedTime&value=71",
    "/message?topic=orders&id={message}",
    "/broker/switchover?name={broker}", "/delayed/level?broker={broker}&level=18",
    "/delayed/recall?topic=orders&message_id={message}", "/transactions/one?id={half}",
    "/transaction/check?transaction={half}",
    "/transaction/resolve?transaction={half}&outcome=commit",
    "/dead-letters/edit?group=billing&id={dead}",
)  # fmt: skip
PATHS = (*(page.path for page in PAGES if page.menu), *DETAILS)
WALKED = {"/dead-letters/progress", "/dead-letters/stop"}
"""Checked in `test_walks.py`."""


def test_no_page_and_no_form_is_left_out():
    shown = {path.partition("?")[0] for path in PATHS} | WALKED
    assert {*(it.path for it in PAGES), *(it.path for it in ACTIONS)} - shown == set()


def data(place, path):
    request = urllib.request.Request(place.url + path, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"]


@pytest.fixture(scope="session")
def names(place):
    """Return the names and ids that the URLs of pages contain."""
    return {
        "broker": data(place, "/brokers")[0]["name"],
        "message": data(place, "/messages?topic=orders&count=1")[0]["offset_message_id"],
        "dead": data(place, "/dead-letters/group?group=billing")[0]["offset_message_id"],
        "half": data(place, "/transactions")[0]["half"],
    }


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible_and_fit(tab, place, names, theme, width, tmp_path):
    tab.theme(theme)
    tab.size(width, 800)
    faults = {}
    for number, path in enumerate(PATHS):
        tab.open(place.url + path.format(**names))
        tab.run(axe.source() + ";1")
        found = [
            it
            for rule in (RULES, OVERLAPS, OVERFLOWS, APART, CUT, SIDEWAYS, TALL)
            for it in tab.run(rule)
        ]
        if tab.run("document.documentElement.scrollWidth") > width:
            found.append("the page scrolls sideways")
        statuses = ("a status of 4", "a status of 502")  # of pages about what is not there
        found += [it for it in tab.complaints if not any(one in it for one in statuses)]
        tab.complaints.clear()
        tab.screenshot(tmp_path / f"{number}.png")
        if found:
            faults[path] = found
    assert faults == {}


def test_axe_finds_what_is_wrong(tab, place):
    """The test above measures something."""
    tab.open(f"{place.url}/topics")
    tab.run("document.querySelector('label').replaceWith(document.createElement('input')); 1")
    tab.run(axe.source() + ";1")
    assert any(it.startswith("label:") for it in tab.run(RULES))
