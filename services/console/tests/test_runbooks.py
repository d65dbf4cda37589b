# SPDX-License-Identifier: Apache-2.0
"""Runbooks are pages: their Markdown becomes HTML, and their links lead somewhere."""

import re
from html import unescape
from pathlib import Path

import pytest
from markupsafe import Markup

from cometmq.console.web.markdown import anchor, as_html
from cometmq.runtime.meanings import runbooks

NAMES = sorted(f"{it.stem}.md" for it in Path(runbooks._TEXTS).iterdir())


def link(text, address):
    return Markup('<a href="{}">{}</a>').format(address, text)


def test_what_surrounds_a_link_keeps_its_marks():
    html = as_html("**a** `b` [c `d`](e.md#f) *g*", link)
    assert html.strip() == (
        '<p><strong>a</strong> <code>b</code> <a href="e.md#f">c <code>d</code></a> <em>g</em></p>'
    )


def test_code_and_tables_scroll_and_headings_have_a_place():
    html = as_html("## One `two`\n\n| a | b |\n|---|:-:|\n| c | d |\n\n```\ne\n```", link)
    assert '<h2 id="one-two">One <code>two</code></h2>' in html
    assert re.search(r'<div class="scroll"[^>]*><table>', html)
    assert '<th scope="col">b</th>' in html  # without a style, which the policy forbids
    assert "<td>d</td>" in html
    assert '<pre tabindex="0">' in html


@pytest.mark.parametrize(
    "text", ["<b>", "`<b>`", "[<b>](c.md)", "## <b>", "- <b>", "1. <b>", "```\n<b>\n```", "**<b>**"]
)
def test_nothing_in_a_text_is_html(text):
    html = as_html(text, link)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_an_address_stays_in_its_attribute():
    assert '<a href="x%22onclick=%22y">a</a>' in as_html('[a](x"onclick="y)', link)


@pytest.mark.parametrize("name", NAMES)
async def test_each_runbook_is_shown_whole_and_its_links_lead_somewhere(sites, name):
    site = sites()
    answer = await site.web.get("/runbook", params={"name": name})
    text = runbooks.runbook_text(name) or ""
    article = answer.text.partition('<article class="prose">')[2].partition("</article>")[0]
    spaced = unescape(re.sub(r"<[^>]+>", " ", article))
    link_or_mark = re.compile(r"\]\([^)]*\)|^ *\d+\.|\W", re.MULTILINE)
    written = link_or_mark.sub(" ", text.partition("\n")[2])
    assert set(written.split()) - set(re.sub(r"\W", " ", spaced).split()) == set()
    shown = re.sub(r"<pre.*?</pre>|<[^>]+>", "", article, flags=re.DOTALL)
    assert not re.search(r"\]\(|\*\*|^#|^\|", shown, re.MULTILINE)
    for href in re.findall(r'href="([^"]+)"', article):
        path, _, place = href.partition("#")
        page = await site.web.get(unescape(path) or answer.request.url)
        assert page.status_code == 200
        assert not place or f'id="{place}"' in page.text


async def test_a_link_to_another_document_names_its_file_or_leads_to_the_documentation(sites):
    name = {"name": "requests-refused.md"}
    page = await sites().web.get("/runbook", params=name)
    assert "the right (docs/guides/security.md)" in page.text
    page = await sites(docsUrl="https://docs.example").web.get("/runbook", params=name)
    assert 'href="https://docs.example/runbooks/../guides/security.md#accounts"' in page.text


def test_headings_are_reached_by_their_names_as_on_github():
    assert anchor("The disk of a slave is full") == "the-disk-of-a-slave-is-full"
    assert anchor("`a.b` (c)") == "ab-c"
