# SPDX-License-Identifier: Apache-2.0
"""Runbooks as HTML, by markdown-it: their headings can be linked to, and their tables scroll."""

import re
from collections.abc import Callable, MutableMapping, Sequence
from itertools import takewhile
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from markupsafe import Markup

Link = Callable[[Markup, str], Markup]
"""Returns the HTML of a link, given that of its text and its address."""
_TABLE: Final = '<div class="scroll" tabindex="0" role="region" aria-label="Table">'


class _Renderer(RendererHTML):
    """Renders links by the function in the environment."""

    def renderInline(  # noqa: N802  # the name is the library's
        self, tokens: Sequence[Token], options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        """Return the HTML of the tokens between two blocks."""
        found, rest = "", iter(tokens)
        for token in rest:
            if token.type != "link_open":
                found += super().renderInline([token], options, env)
                continue
            inner = list(takewhile(lambda it: it.type != "link_close", rest))
            text = Markup(super().renderInline(inner, options, env))  # noqa: S704  # escaped
            found += str(env["link"](text, str(token.attrs["href"])))
        return found


def as_html(text: str, link: Link) -> Markup:
    """Return a text as HTML; nothing in it is HTML already."""
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    tokens, env = parser.parse(text), {"link": link}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[at + 1].content))
        elif token.type in {"th_open", "td_open"}:  # the policy forbids the style of an alignment
            token.attrs = {"scope": "col"} if token.tag == "th" else {}
    html = parser.renderer.render(tokens, parser.options, env)
    html = html.replace("<table>", f"{_TABLE}<table>").replace("</table>", "</table></div>")
    return Markup(html.replace("<pre>", '<pre tabindex="0">'))  # noqa: S704  # escaped


def anchor(heading: str) -> str:
    """Return the name by which links reach a heading, as on GitHub."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
