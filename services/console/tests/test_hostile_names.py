# SPDX-License-Identifier: Apache-2.0
"""Names that try to be markup, scripts or addresses are only text, on every list."""

import itertools
import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import msgspec
import pytest

from cometmq.client.admin.figures import BrokerFigures
from cometmq.client.errors import NoRoute
from cometmq.console.pages import PAGES
from cometmq.insight.model import (
    Broker,
    BrokerState,
    DelayLevel,
    Disk,
    Group,
    GroupTopic,
    HalfMessages,
    Member,
    Producer,
    Refusal,
    Since,
    Snapshot,
    Subscription,
    Topic,
    TopicKind,
    Trouble,
    Unknown,
    Unreachable,
)
from cometmq.remoting.visible import visible

from .desks import ADMIN, JSON, FakeAdmin, snapshot

NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "</textarea></title></style><svg onload=alert(1)>",
    "]]><!--<a href='//evil.example'>",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "a&b=c#d?e/../f",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "\U0001f4a9" * 60,
    "\x00\x07\x1b[31m",
    "x" * 5_000,
    "..",
)
TEXT = """html head meta title link script body a header svg circle path span div
button form input nav ul li main h1 h2 h3 p section article dl
dt dd footer time code table caption thead tbody tr th td label select
option strong details summary pre datalist textarea figure figcaption line text meter progress"""
KINDS = set(TEXT.split())


class Inspector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.faults = []
        self.area = False

    def handle_starttag(self, tag, attrs):
        if tag not in KINDS:
            self.faults.append(f"<{tag}>")
        given = dict(attrs)
        self.area = tag == "textarea"
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.faults.append(f"script {given}")
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.faults.append(f"{tag} {name}={value}")
            if name in {"href", "src", "action"} and (
                urlsplit(value or "").scheme or (value or "").startswith("//")
            ):
                self.faults.append(f"{tag} {name}={value}")
            if name != "value":
                self.handle_data(value or "")

    def handle_endtag(self, tag):
        self.area = False

    def handle_data(self, data):
        if visible(data) != data and not self.area:
            self.faults.append(ascii(data[:100]))


def hostile(clock, name):
    well = BrokerState(BrokerFigures(version=name, writes_refused=name), Disk(0.95))
    dead = Unreachable(Trouble.DOWN, name, Since(1))
    own = GroupTopic(name, 1, 0, 5, 3.0, lost=2)
    group = Group(
        name, False, 16, True, [Member(name, name, name, 9_999, [name])], name, name,
        [Subscription(name, name, name)], [own], 5, Unknown(name), 1.0, 3, 2, [name], [name],
    )  # fmt: skip
    return snapshot(
        clock,
        brokers=[Broker(name, name, 0, name, well), Broker(name, name, 1, name, dead)],
        topics=[Topic(name, TopicKind.NORMAL, 6, 4, 4, [name], 1, 1, 0.0, 1, [name])],
        groups=[group],
        producers=[Producer(name, name, name, name, -1, [name])],
        half_messages=[HalfMessages(name, 4)],
        delayed=[DelayLevel(name, 3, 7, name)],
        refusals=[Refusal(name, 10, 2, name, name, name, 3, 1, 2)],
        notes=[name],
    )


ONLY_IN_JSON = {
    "/brokers": {"address", "cluster"},
    "/topics": {"brokers", "groups"},
    "/groups": {
        *("consume_type", "disagreements", "missing_brokers", "model"),
        *("subscriptions", "topics"),
    },
}
"""Parts of a row that lists leave to the pages of single items, or write in another form."""


class Shown(HTMLParser):
    """The texts of a page, as a reader sees them."""

    def __init__(self, page):
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, _tag, attrs):
        self.text += "".join(f"\n{value}" for name, value in attrs if name in {"title", "value"})

    def handle_data(self, data):
        self.text += data


def told(data, part=""):
    """Yield each string, and the part of its row in which it is."""
    if isinstance(data, str):
        yield part, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from told(value, part or key)
    elif isinstance(data, list):
        for value in data:
            yield from told(value, part)


@pytest.mark.parametrize("name", [it for it in NAMES if len(it) < 1_000 and it.isprintable()])
@pytest.mark.parametrize("path", [page.path for page in PAGES if page.menu])
async def test_a_page_shows_what_its_json_tells(sites, path, name):
    """Each name in the snapshot is another one, so that none hides the lack of another."""
    site, numbers = sites(admin=Silent()), itertools.count()
    coded = msgspec.json.encode(name).decode()[1:-1]
    mixed = msgspec.json.encode(hostile(site.clock, name)).decode()
    mixed = re.sub(re.escape(coded), lambda _: f"{coded}n{next(numbers)}z", mixed)
    site.snapshot = msgspec.json.decode(mixed, type=Snapshot)
    shown = Shown((await site.web.get(path, headers=ADMIN)).text).text.casefold()
    answer = (await site.web.get(path, headers={**ADMIN, **JSON})).json()
    lacking = {
        part
        for part, text in told(answer.get("data"))
        for found in re.findall(rf"{re.escape(name)}n\d+z", text)
        if found.casefold() not in shown
    }
    assert lacking == ONLY_IN_JSON.get(path, set())


class Silent(FakeAdmin):
    """A client of a cluster without brokers."""

    async def masters(self):
        return {}

    async def masters_of(self, _topic):
        return []

    def __getattr__(self, name):
        async def call(*_args, **_more):
            raise NoRoute(f"{name}: no broker")

        return call


async def test_a_finding_links_to_its_runbook(sites):
    site = sites()
    site.snapshot = hostile(site.clock, "a")
    text = (await site.web.get("/")).text
    links = set(re.findall(r'Runbook: <a href="([^"]+)"', text))
    assert "/runbook?name=disk-full.md" in links
    for link in links:
        assert (await site.web.get(link)).status_code == 200
    page = await site.web.get("/runbook?name=disk-full.md")
    assert "<h1>The disk is full</h1>" in page.text
    assert "cometmq explain disk-full.md" in page.text
    assert (await site.web.get("/runbook", params={"name": "../x"})).status_code == 404
    elsewhere = sites(docsUrl="https://docs.example")
    elsewhere.snapshot = hostile(site.clock, "a")
    assert (
        'href="https://docs.example/runbooks/disk-full.md"' in (await elsewhere.web.get("/")).text
    )
