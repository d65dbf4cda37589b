# SPDX-License-Identifier: Apache-2.0
"""New topics: they are created on the brokers that the user has seen, and on no others."""

import re
from typing import Any

import pytest

from cometmq.remoting.bodies.topic_config import QUEUES_MAX, TopicConfig

from .desks import ADMIN, JSON, FakeAdmin, snapshot

SOURCE = TopicConfig(topic_name="orders")


class Brokers(FakeAdmin):
    """Masters that have the topic `orders`, and that a test may add to."""

    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.created: list[Any] = []

    async def masters(self):
        return {name: name for name in self.names}

    async def masters_to_change(self, _cluster=None, _names=None):
        return {name: Named(name) for name in self.names}

    async def ask_all(self, masters, _question):
        return [(it, {"orders": SOURCE}) for it in masters]

    async def ask_each(self, _masters, _question):
        return []

    async def topic_configs(self, topic):
        return dict.fromkeys(self.names if topic == "orders" else (), SOURCE)

    async def too_many_queues(self, _topic, _before, after):
        count = sum(it.read_queue_nums for it in after.values())
        return f"it would have {count} queues" if count > QUEUES_MAX else ""

    async def create_topic(self, topic, **more):
        self.created.append((topic, more["broker_names"]))


class Named:
    def __init__(self, name):
        self.name = name


@pytest.fixture
def admin():
    return Brokers()


@pytest.fixture
def site(sites, admin):
    site = sites(admin=admin)
    site.snapshot = snapshot(site.clock, groups=[])
    return site


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/topic/create", {"topic": "wide", "queues": "16384", "perm": "rw"}),
        (
            "/topic/alter",
            {"topic": "orders", "read_queues": "16384"},
        ),
    ],
)
async def test_a_topic_that_clients_would_refuse_is_refused(site, admin, path, form):
    plan = (await site.web.get(path, params=form, headers={**ADMIN, **JSON})).json()["plan"]
    assert plan["refusal"] == "it would have 32768 queues"


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/topic/create", {"topic": "new", "queues": "4", "perm": "rw"}),
    ],
)
async def test_a_broker_that_was_added_meanwhile_gets_no_topic_unseen(site, admin, path, form):
    plan = (await site.web.get(path, params=form, headers={**ADMIN, **JSON})).json()
    admin.names.append("c")
    form |= {"mark": plan["plan"]["mark"]}
    answer = await site.web.post(path, data=form, headers={**ADMIN, **JSON})
    assert answer.status_code == 409
    assert "has changed since" in answer.text
    assert not admin.created


async def test_a_topic_is_created_on_the_brokers_that_were_shown(site, admin):
    form = {"topic": "new", "queues": "4", "perm": "rw"}
    plan = (await site.web.get("/topic/create", params=form, headers={**ADMIN, **JSON})).json()
    form["mark"] = plan["plan"]["mark"]
    answer = await site.web.post("/topic/create", data=form, headers={**ADMIN, **JSON})
    assert answer.status_code == 200, answer.text
    assert admin.created == [("new", ["a", "b"])]


@pytest.mark.parametrize(
    ("path", "args", "text"),
    [
        ("/topic/alter", {"topic": "orders", "read_queues": "-5"},
         "Read queues must be between 1 and"),
        ("/topic/create", {"topic": "new", "queues": "many"}, "must be a whole number"),
        ("/topic/create", {"topic": "new", "queues": "many", "more": "a"}, "must be a whole"),
    ],
)  # fmt: skip
async def test_a_form_with_a_wrong_value_is_shown_again_as_it_was_typed(site, path, args, text):
    await site.log_in()
    answer = await site.web.get(path, params=args)
    assert answer.status_code == 400
    assert text in answer.text
    for value in args.values():
        assert f'value="{value}"' in answer.text
    assert 'name="mark"' not in answer.text, "there is nothing to confirm"
    told = await site.web.get(path, params=args, headers={"Accept": "application/json"})
    assert (told.status_code, "error" in told.json()) == (400, True)


async def test_a_wrong_value_of_a_page_leads_back_without_it(site):
    args = {"topic": "orders", "since": "yesterday", "tag": "red"}
    answer = await site.web.get("/messages", params=args)
    assert answer.status_code == 400
    assert "since: yesterday is not a time: give" in answer.text
    (link,) = re.findall(r'href="([^"]+)">Look at it again', answer.text)
    assert link.startswith("/messages?")
    assert "tag=red" in link
    assert "yesterday" not in link
