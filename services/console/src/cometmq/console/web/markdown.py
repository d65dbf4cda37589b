# SPDX-License-Identifier: Apache-2.0
"""Runbooks as HTML: the part of Markdown that they use.

These are headings, paragraphs, lists, tables, fenced code, code, emphasis and links. A whole parser
would be a further dependency, and more memory for each open console.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from typing import Final

from markupsafe import Markup

from cometmq.console.web.templating import escaped

Link = Callable[[Markup, str], Markup]
"""Returns the HTML of a link, given its text and its address."""
_INLINE: Final = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|\*\*(?P<strong>.+?)\*\*"
    r"|\*(?P<em>[^*\s](?:[^*]*[^*\s])?)\*"
    r"|\[(?P<text>(?:`[^`]*`|[^\[\]`])+)\]\((?P<link>[^)\s]+)\)"
)
_ITEM: Final = re.compile(r"(?P<mark>[-*]|\d{1,9}\.)\s+(?=\S)")
_HEADING: Final = re.compile(r"(#{1,6})\s+(.*)")
_RULER: Final = re.compile(r"\|(?:\s*:?-+:?\s*\|)+\s*")
_CELL_END: Final = re.compile(r"(?<!\\)\|")
_FENCE: Final = "```"


def as_html(text: str, link: Link) -> Markup:
    """Return a text as HTML; everything in it is escaped."""
    return Markup("\n").join(_blocks(text.splitlines(), link))


def anchor(heading: str) -> str:
    """Return the name by which links reach a heading, as on GitHub."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def _blocks(lines: Sequence[str], link: Link) -> Iterator[Markup]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if line.startswith(_FENCE):
            end = _end(lines, end, lambda it: it.startswith(_FENCE))
            yield _code(lines[at + 1 : end])
            end += 1
        elif found := _HEADING.fullmatch(line):
            name = Markup('<h{0} id="{1}">{2}</h{0}>')
            yield name.format(len(found[1]), anchor(found[2]), _inline(found[2], link))
        elif line.startswith("|") and end < len(lines) and _RULER.fullmatch(lines[end]):
            end = _end(lines, end, lambda it: not it.startswith("|"))
            yield _table(lines[at:end], link)
        elif found := _ITEM.match(line):
            end = _end(
                lines, end, lambda it: bool(it) and not it[0].isspace() and not _ITEM.match(it)
            )
            yield _list(lines[at:end], link, is_ordered=found["mark"][0].isdigit())
        elif line.strip():
            end = _end(lines, end, lambda it: not it.strip() or _begins_block(it))
            yield Markup("<p>{}</p>").format(_inline(" ".join(lines[at:end]), link))
        at = end


def _end(lines: Sequence[str], begin: int, ends: Callable[[str], bool]) -> int:
    """Return the first line from `begin` on that ends a block."""
    return next((at for at in range(begin, len(lines)) if ends(lines[at])), len(lines))


def _begins_block(line: str) -> bool:
    return line.startswith((_FENCE, "|")) or bool(_HEADING.match(line) or _ITEM.match(line))


def _code(lines: Sequence[str]) -> Markup:
    return Markup('<pre tabindex="0"><code>{}</code></pre>').format(escaped("\n".join(lines)))


def _list(lines: Sequence[str], link: Link, *, is_ordered: bool) -> Markup:
    starts = [at for at, line in enumerate(lines) if _ITEM.match(line)]
    items = []
    for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = _ITEM.sub("", lines[at], count=1)
        rest = dedent("\n".join(lines[at + 1 : end])).splitlines()
        begin = _end(rest, 0, lambda it: not it.strip() or _begins_block(it))
        said = _inline(" ".join([first, *rest[:begin]]), link)
        inner = Markup("\n").join(_blocks(rest[begin:], link))
        items.append(Markup("<li>{}{}</li>").format(said, inner))
    form = Markup("<ol>{}</ol>") if is_ordered else Markup("<ul>{}</ul>")
    return form.format(Markup("\n").join(items))


def _table(lines: Sequence[str], link: Link) -> Markup:
    head, _, *rows = (_cells(it) for it in lines)
    names = Markup("").join(
        Markup('<th scope="col">{}</th>').format(_inline(it, link)) for it in head
    )
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(_inline(it, link)) for it in row)
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(names, body)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [it.strip().replace("\\|", "|") for it in _CELL_END.split(inner)]


def _inline(text: str, link: Link) -> Markup:
    found, at = Markup(""), 0
    for it in _INLINE.finditer(text):
        found += escaped(text[at : it.start()]) + _marked(it, link)
        at = it.end()
    return found + escaped(text[at:])


def _marked(found: re.Match[str], link: Link) -> Markup:
    if found["code"]:
        return Markup("<code>{}</code>").format(escaped(found["code"]))
    if found["strong"]:
        return Markup("<strong>{}</strong>").format(_inline(found["strong"], link))
    if found["em"]:
        return Markup("<em>{}</em>").format(_inline(found["em"], link))
    return link(_inline(found["text"], link), found["link"])
