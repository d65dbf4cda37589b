# SPDX-License-Identifier: Apache-2.0
"""Pages of dead letters and of open transactions on a real suite."""

import json
import re
from html import unescape

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    PushConsumer,
    PushOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.testing import eventually
from cometmq.insight.times import shown as moment
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.transactions import SetTransactionAside
from cometmq.remoting.message.flags import Perm

from .desks import JSON, OPERATOR, VIEWER, hidden
from .message_pages import NASTY, carry_out, data, page

# -- dead letters ---------------------------------------------------------------------------------


@pytest.fixture
async def dead(plain_suite, plain_admin, send):
    """Return a group with three dead letters."""
    group = "paged-dead"
    if not await plain_admin.namesrv.route(f"%DLQ%{group}"):
        await plain_admin.create_topic("Dying", queue_count=1)
        for at in range(3):
            await send(b"letter %d" % at, topic="Dying", keys=(f"k{at}",))

        async def give_up(_messages):
            return ConsumeResult.DEAD_LETTER

        options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
        consumer = PushConsumer(group, plain_suite.namesrv, listener=give_up, options=options)
        consumer.subscribe("Dying")
        async with consumer:

            async def buried():
                return len([it async for it in plain_admin.dead_letters(group)]) == 3

            await eventually(buried)
    return group


async def test_dead_letters_are_listed_with_their_groups(live, plain_admin, dead):
    groups = {it["group"]: it for it in await data(live, "/dead-letters")}
    assert groups[dead]["messages"] == 3
    letters = await data(live, "/dead-letters/group", group=dead)
    assert groups[dead]["last"] == moment(max(it["store_timestamp"] for it in letters))
    assert f'href="/dead-letters/group?group={dead}"' in await page(live, "/groups")
    assert {it["origin_topic"] for it in letters} == {"Dying"}
    assert letters == sorted(letters, key=lambda it: it["store_timestamp"])
    some = await data(live, "/dead-letters/group", group=dead, key="k1")
    assert [it["body"] for it in some] == ["letter 1"]
    text = await page(live, "/dead-letters/group", group=dead)
    assert "protocol carries no error" in text
    assert "as an operator to correct them or to send them again" in text
    assert re.findall(r">Dying</td><td>(.*?)</td>", text) == ["1"] * 3  # deliveries
    none = await page(live, "/dead-letters/group", group=dead, key="nobody")
    await plain_admin.create_group(SubscriptionGroupConfig(group_name="paged-alive"))
    alive = await page(live, "/dead-letters/group", group="paged-alive")
    assert "paged-alive has no dead letters" in alive
    assert "No dead letter" in none


async def test_dead_letters_are_downloaded_as_the_command_line_exports_them(live, dead):
    text = await page(live, "/dead-letters/group", group=dead, key="k1")
    (link,) = re.findall(r'href="([^"]+download=1)"', text)
    file = await live.web.get(unescape(link), headers=VIEWER)
    assert file.headers["content-disposition"].endswith(f'filename="dead-letters-{dead}.jsonl"')
    (line,) = file.text.splitlines()
    letter = json.loads(line)
    assert (letter["body"], letter["keys"][-1]) == ("letter 1", "k1")
    assert letter["origin_topic"] == "Dying"
    everything = await live.web.get(f"/dead-letters/group?group={dead}&download=1", headers=VIEWER)
    assert len(everything.text.splitlines()) == 3


async def test_only_what_was_asked_for_is_called_selected(live, dead):
    text = await page(live, "/dead-letters/group", group=dead)
    assert "3 in all" in text
    assert "selected" not in text
    assert "1 selected" in await page(live, "/dead-letters/group", group=dead, key="k1")


async def test_a_dead_letter_and_its_original_link_to_each_other(live, dead):
    letter = (await data(live, "/dead-letters/group", group=dead, key="k0"))[0]
    (sent,) = await data(live, "/messages", topic="Dying", key="k0")
    ids = sent["offset_message_id"], letter["offset_message_id"]
    topics = "Dying", f"%25DLQ%25{dead}"
    for own, other in ((0, 1), (1, 0)):
        shown = await live.web.get(f"/message?topic={topics[own]}&id={ids[own]}", headers=VIEWER)
        assert f'href="/message?topic={topics[other]}&amp;id={ids[other]}"' in shown.text


async def test_only_the_ticked_dead_letters_are_sent_again(live, plain_admin, dead):
    await live.log_in("operator")
    letters = await data(live, "/dead-letters/group", group=dead)
    ids = [it["offset_message_id"] for it in letters[:2]]
    await plain_admin.create_topic("Replayed", queue_count=1)
    form = {"group": dead, "ids": ids, "topic": "Replayed", "rate": "1000", "from_start": "1"}
    shown = await live.web.get("/dead-letters/replay", params=form)
    assert "Send 2 dead letters of paged-dead again to Replayed" in shown.text
    given = " ".join(f"--id {it}" for it in ids)
    options = f"{given} --rate 1000 --topic Replayed --from-start"
    assert f"cometmq -n n:9876 dlq replay {dead} {options}" in shown.text
    assert not await _count(plain_admin, "Replayed")  # a dry run
    body = [
        ("csrf", hidden(shown, "csrf")),
        ("mark", hidden(shown, "mark")),
        *((key, it) for key, it in form.items() if key != "ids"),
        *(("ids", it) for it in ids),
    ]
    done = await live.web.post(
        "/dead-letters/replay",
        content="&".join(f"{key}={value}" for key, value in body),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert done.status_code == 303, done.text
    assert await _count(plain_admin, "Replayed") == 2
    entries = await live.audit.newest(2)
    assert [(it.action, it.outcome) for it in entries] == [
        ("dead-letters.replay", "done"), ("dead-letters.replay", "begun"),
    ]  # fmt: skip


async def test_a_rate_that_is_typed_beside_the_plan_is_planned_first(live, plain_admin, dead):
    for broker in (await plain_admin.masters()).values():
        await broker.create_group(SubscriptionGroupConfig(group_name=dead))
    await live.log_in("operator")
    await plain_admin.create_topic("Typed", queue_count=1)
    form = {"group": dead, "topic": "Typed", "from_start": "1", "key": "k0"}
    again = await carry_out(live, "/dead-letters/replay", form, rate="7")
    assert again.status_code == 409
    assert "This is what you typed; look at it, and confirm it again" in again.text
    assert "--rate 7" in again.text
    assert not await _count(plain_admin, "Typed")
    form = {**form, "rate": "7"}
    assert (await carry_out(live, "/dead-letters/replay", form)).status_code == 303
    assert await _count(plain_admin, "Typed") == 1


async def test_nothing_ticked_sends_nothing(live, dead):
    form = {"group": dead, "ticked": "1"}
    plan = await live.web.get("/dead-letters/replay", params=form, headers={**JSON, **OPERATOR})
    assert (plan.status_code, "No dead letter is ticked" in plan.text) == (400, True)
    listed = await live.web.get("/dead-letters/group", params={"group": dead}, headers=OPERATOR)
    assert 'name="ticked"' in listed.text


async def test_dead_letters_that_were_sent_again_are_marked(live, plain_admin, dead):
    for broker in (await plain_admin.masters()).values():
        await broker.create_group(SubscriptionGroupConfig(group_name=dead))
    letters = await data(live, "/dead-letters/group", group=dead)
    assert [it["replayed_ms"] for it in letters] == [0] * 3
    text = await page(live, "/dead-letters/group", group=dead)
    assert text.count(">never</span>") == 3
    given = letters[1]["offset_message_id"]
    assert f'id={given}#life">Life</a>' in text
    await live.log_in("operator")
    form = {"group": dead, "ids": given}
    assert (await carry_out(live, "/dead-letters/replay", form)).status_code == 303

    async def replayed():
        found = await data(live, "/dead-letters/group", group=dead)
        times = {it["offset_message_id"]: it["replayed_ms"] for it in found}
        return times if any(times.values()) else None

    times = await eventually(replayed)  # the index of keys follows
    assert [key for key, at_ms in times.items() if at_ms] == [given]
    assert times[given] >= letters[1]["store_timestamp"]
    assert (await page(live, "/dead-letters/group", group=dead)).count(">never</span>") == 2


async def _count(plain_admin, topic):
    stats = await plain_admin.topic_stats(topic)
    return sum(it.max_offset for it in stats.values())


async def test_a_replay_that_is_too_large_names_the_command(live, dead):
    form = {"group": dead, "rate": "1", "from_start": "1"}
    plan = await live.web.get("/dead-letters/replay", params=form, headers={**JSON, **OPERATOR})
    assert plan.json()["plan"]["refusal"] == ""
    nothing = {"group": dead, "key": "nobody"}
    one = await data(live, "/dead-letters/group", group=dead, key="k0")
    wanted = {"group": dead, "ids": one[0]["message_id"], "from_start": "1"}
    planned = await live.web.get("/dead-letters/replay", params=wanted, headers=OPERATOR)
    assert "Send 1 dead letter of" in planned.text
    assert f'name="ids" value="{wanted["ids"]}"' in planned.text.partition("<section")[0]
    none = await live.web.get("/dead-letters/replay", params=nothing, headers={**JSON, **OPERATOR})
    assert "nothing matched" in none.json()["plan"]["refusal"]


async def test_a_refused_replay_leads_to_the_page_that_helps(live, plain_admin, dead):
    """The group allows no retries, and a topic may not exist: a page is linked."""
    await live.log_in("operator")
    (letter,) = await data(live, "/dead-letters/group", group=dead, key="k1")
    config = SubscriptionGroupConfig(group_name=dead, retry_max_times=0)
    for broker in (await plain_admin.masters()).values():
        await broker.create_group(config)
    await plain_admin.create_topic("Archive", perm=Perm.READ)
    edited = {"id": letter["offset_message_id"], "edited": "1", "body": "b"}
    for path, more in (("replay", {"from_start": "1"}), ("edit", edited)):
        for topic, why, link in (
            ("", f"{dead} allows 0 retries at ", f"/group/alter?group={dead}&retries=1"),
            ("Nowhere", "no broker has the topic Nowhere", "/topic/create?topic=Nowhere"),
            ("Archive", "Archive", "/topic/alter?topic=Archive"),
        ):
            given = {"group": dead, "topic": topic, **more}
            asked = await live.web.get(f"/dead-letters/{path}", params=given)
            (refusal,) = re.findall(r'<p class="notice bad".*?</p>', asked.text)
            assert why in refusal
            assert f'href="{link.replace("&", "&amp;")}"' in refusal
            assert (await live.web.get(link)).status_code in {200, 403}
            answer = await live.web.get(asked.request.url, headers=JSON)
            remedy = answer.json()["plan"]["remedy"]
            assert remedy == {"text": re.findall(">([^<]+)</a>", refusal)[0], "href": link}
    usual = SubscriptionGroupConfig(group_name=dead)
    for broker in (await plain_admin.masters()).values():
        await broker.create_group(usual)


async def test_a_dead_letter_is_corrected_and_sent(live, plain_admin, dead):
    await live.log_in("operator")
    letter = (await data(live, "/dead-letters/group", group=dead, key="k2"))[0]
    await plain_admin.create_topic("Corrected", queue_count=1)
    form = {
        "group": dead, "id": letter["offset_message_id"], "edited": "1",
        "body": "corrected\r\nbody", "tag": "new", "keys": "k9", "topic": "Corrected",
    }  # fmt: skip
    done = await carry_out(live, "/dead-letters/edit", form, **form)
    assert done.status_code == 303, done.text
    (sent,) = await data(live, "/messages", topic="Corrected")
    assert (sent["body"], sent["tag"], sent["keys"]) == ("corrected\nbody", "new", ["k9"])
    assert len(await data(live, "/dead-letters/group", group=dead)) == 3


async def test_a_wrong_rate_or_time_keeps_the_form(live, dead):
    await live.log_in("operator")
    first = await live.web.get("/dead-letters/replay", params={"group": dead})
    form = {"group": dead, "csrf": hidden(first, "csrf"), "topic": "Elsewhere", "tag": "new"}
    for wrong, label in (({"rate": "0"}, "Messages per second"), ({"since": "yesterday"}, "Since")):
        answer = await live.web.post("/dead-letters/replay", data={**form, **wrong})
        assert answer.status_code == 400
        assert f'role="alert">{label}' in answer.text
        for value in ("Elsewhere", "new", *wrong.values()):
            assert f'value="{value}"' in answer.text
    listed = await live.web.get("/dead-letters/group", params={"group": dead, "since": "yesterday"})
    assert (listed.status_code, "Look at it again" in listed.text) == (400, True)


async def test_viewers_send_nothing(live, dead):
    params = {"group": dead}
    answer = await live.web.get("/dead-letters/replay", params=params, headers={**JSON, **VIEWER})
    assert answer.status_code == 403


# -- transactions ---------------------------------------------------------------------------------


@pytest.fixture
async def half(plain_suite, plain_admin):
    """Return the place of an open transaction."""
    await plain_admin.create_topic("Halves", queue_count=1)

    async def execute(_message, _arg):
        return TransactionState.UNKNOWN

    async def check(_message):
        return TransactionState.UNKNOWN

    async with TransactionProducer(
        "half-producers", plain_suite.namesrv, execute=execute, check=check
    ) as producer:
        await producer.send_in_transaction(Message("Halves", b"half a <b>", keys=("h",)))
    masters = await plain_admin.masters()
    (master,) = masters.values()
    *_, last = [it async for it in master.open_transactions()]
    return f"{last.broker}:{last.offset}"


async def test_an_open_transaction_is_shown_and_resolved_once(live, half):
    await live.log_in("operator")
    listed = await data(live, "/transactions")
    assert half in {it["half"] for it in listed}
    assert "half-producers" in await page(live, "/transactions")
    assert "half a &lt;b&gt;" in await page(live, "/transactions/one", id=half)
    form = {"transaction": half, "outcome": "commit"}
    refused = await carry_out(live, "/transaction/resolve", form, confirm="something else")
    assert refused.status_code == 400
    done = await carry_out(live, "/transaction/resolve", form, confirm=half)
    assert done.status_code == 303, done.text
    (sent,) = [it for it in await data(live, "/messages", topic="Halves") if it["keys"] == ["h"]][
        -1:
    ]
    assert sent["body"] == "half a <b>"
    again = await live.web.get("/transaction/resolve", params=form, headers={**JSON, **OPERATOR})
    assert again.json()["plan"]["refusal"].endswith("has already ended")


async def test_a_transaction_that_was_set_aside_is_resolved(live, half, plain_admin):
    await live.log_in("operator")
    name, _, offset = half.rpartition(":")
    master = (await plain_admin.masters())[name]
    message = (await master.half_message(int(offset))).message
    header = SetTransactionAside(message.physical_offset, int(offset))
    await master.invoke(RequestCode.SET_TRANSACTION_ASIDE, header)
    shown = (await live.web.get("/transactions/one", params={"id": half})).text
    assert ("Resolve …" in shown, "Ask the producer …" in shown) == (True, False)
    asked = {"transaction": half}
    refused = await live.web.get("/transaction/check", params=asked, headers={**JSON, **OPERATOR})
    assert "was set aside" in refused.json()["plan"]["refusal"]
    form = {"transaction": half, "outcome": "rollback"}
    assert (await carry_out(live, "/transaction/resolve", form, confirm=half)).status_code == 303
    again = await live.web.get("/transaction/resolve", params=form, headers={**JSON, **OPERATOR})
    assert again.json()["plan"]["before"]["state"] == "ended"


async def test_a_producer_that_is_gone_is_not_asked(live, half):
    await live.log_in("operator")
    done = await carry_out(live, "/transaction/check", {"transaction": half})
    assert done.status_code == 303
    there = await live.web.get(done.headers["location"])
    assert "No producer of the group half-producers is connected" in there.text


async def test_a_connected_producer_is_asked_and_ends_the_transaction(live, plain_suite, half):
    asked = []

    async def unknown(*_args):
        return TransactionState.UNKNOWN

    async def check(message):
        asked.append(message.body)
        return TransactionState.COMMIT

    await live.log_in("operator")
    async with TransactionProducer(
        "half-producers", plain_suite.namesrv, execute=unknown, check=check
    ) as producer:
        await producer.send_in_transaction(Message("Halves", b"another"))  # makes it known

        async def ended():
            form = {"transaction": half, "outcome": "commit"}
            shown = await live.web.get("/transaction/resolve", params=form, headers=JSON)
            return "already ended" in str(shown.json()["plan"]["refusal"])

        done = await carry_out(live, "/transaction/check", {"transaction": half})
        assert "was asked" in (await live.web.get(done.headers["location"])).text
        await eventually(ended)
    assert b"half a <b>" in asked


@pytest.mark.parametrize("place", ["nobody:1", "x", ":", "vm:99999999", NASTY])
async def test_an_unknown_transaction_is_named(live, half, place):
    answer = await live.web.get("/transactions/one", params={"id": place}, headers=JSON)
    assert answer.status_code in {400, 404, 502, 503}
    assert answer.json()["text"]
