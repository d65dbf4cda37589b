# SPDX-License-Identifier: Apache-2.0
"""The pages that commands write can be read on a phone, and are accessible."""

import subprocess

import pytest

from cometmq.peers.comet import PROGRAM

from . import axe
from .test_pages import RULES

TIMEOUT_S = 120
HIDDEN = """
[...document.querySelectorAll(".wide")]
  .filter((it) => it.scrollWidth > it.clientWidth)
  .map((it) => `a table has ${it.scrollWidth} px on ${it.clientWidth}`)
"""
BROKEN = """
[...document.querySelectorAll("tbody :is(td, th)")].filter((it) => {
  const longest = Math.max(...it.innerText.split(/\\s+/).map((word) => word.length));
  return it.getBoundingClientRect().width < 7 * Math.min(12, longest);
}).map((it) => `${it.outerHTML.slice(0, 200)} breaks words of 12 letters`)
"""
"""Cells that are too narrow for their words, at 7 pixels a letter."""


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("command", [("lag", "--report"), ("report", "--top", "50", "-o")])
def test_a_written_page_is_accessible_and_fits(browser, place, command, width, tmp_path):
    file = tmp_path / "page.html"
    words = [str(PROGRAM), *command, str(file), "-n", place.namesrv]
    subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_S)
    browser.theme("light")
    browser.size(width, 812)
    browser.open(file.as_uri())
    assert len(browser.run("document.body.innerText")) > 500
    browser.run(axe.source() + ";1")
    assert [it for rule in (RULES, HIDDEN, BROKEN) for it in browser.run(rule)] == []
    assert browser.run("document.documentElement.scrollWidth") == width
