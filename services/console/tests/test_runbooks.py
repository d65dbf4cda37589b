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


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("## One `two`", '<h2 id="one-two">One <code>two</code></h2>'),
        ("a\nb\n\nc", "<p>a b</p>\n<p>c</p>"),
        ("a **b `c`** *d* 2 * 3", "<p>a <strong>b <code>c</code></strong> <em>d</em> 2 * 3</p>"),
        ("[a `b`](c.md#d)", '<p><a href="c.md#d">a <code>b</code></a></p>'),
        ("- a\n  b\n- c", "<ul><li>a b</li>\n<li>c</li></ul>"),
        ("1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li>\n<li>c</li></ol>"),
        ("1. a\n\n   b", "<ol><li>a<p>b</p></li></ol>"),
        ("```\n<a> `b`\n```", '<pre tabindex="0"><code>&lt;a&gt; `b`</code></pre>'),
        ("a\n```\nb\n```\nc", '<p>a</p>\n<pre tabindex="0"><code>b</code></pre>\n<p>c</p>'),
    ],
)  # fmt: skip
def test_blocks_and_marks(text, html):
    assert as_html(text, link) == html


def test_a_table_has_headings_and_cells():
    html = as_html("| a | b |\n|---|:-:|\n| `c\\|d` | <e> |", link)
    assert '<th scope="col">a</th><th scope="col">b</th>' in html
    assert "<td><code>c|d</code></td><td>&lt;e&gt;</td>" in html


@pytest.mark.parametrize(
    "text", ["<b>", "`<b>`", "[<b>](c.md)", "## <b>", "- <b>", "1. <b>", "```\n<b>\n```", "**<b>**"]
)
def test_nothing_in_a_text_is_html(text):
    html = as_html(text, link)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_an_address_stays_in_its_attribute():
    assert as_html('[a](x"onclick="y)', link) == '<p><a href="x&#34;onclick=&#34;y">a</a></p>'


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
