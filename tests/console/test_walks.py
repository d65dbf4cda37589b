# SPDX-License-Identifier: Apache-2.0
"""What a person does in the browser: themes, keys, filters, and changes from end to end."""

import asyncio

from cometmq.client import Message, Producer
from cometmq.client.admin import AdminClient
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import dead_letter_topic, retry_topic

from . import axe
from .test_pages import RULES


def text(tab, selector):
    return tab.run(f"document.querySelector({selector!r})?.innerText")


def test_a_topic_is_created_changed_and_deleted_by_clicks(tab, place):
    tab.open(f"{place.url}/topics")
    tab.click("a[href$='/topic/create']")
    tab.submit("input[name=topic]", {"input[name=topic]": "clicked", "input[name=queues]": "3"})
    assert text(tab, "#plan") == "Create the topic clicked"
    tab.click("form[method=post] button.primary")
    assert text(tab, "h1") == "Topic clicked"
    assert "exists now" in text(tab, ".notice")
    tab.click("a[href*='/topic/alter']")
    tab.submit("input[name=read_queues]", {"input[name=read_queues]": "1"})
    assert "lower the write queues first" in text(tab, ".consequences")
    tab.click("form[method=post] button.primary")
    assert "is changed" in text(tab, ".notice")
    tab.click("a[href*='/topic/delete']")
    tab.enter("input[name=confirm]", "clicked")
    assert text(tab, "h1") == "Topics"
    assert "is deleted" in text(tab, ".notice")
    tab.open(f"{place.url}/audit")
    assert text(tab, "tbody tr") is not None
    assert "topic.delete" in text(tab, "tbody")
    assert tab.complaints == []


def test_a_group_is_moved_with_a_preview(tab, place):
    tab.open(f"{place.url}/group?name=billing")
    tab.click("a[href*='/group/reset']")
    tab.submit("input[name=to]", {"input[name=to]": "last"})
    assert "40 messages that the group has not read are skipped" in text(tab, ".consequences")
    tab.click("form[method=post] button.primary")
    assert "continues at the end" in text(tab, ".notice")
    tab.open(f"{place.url}/group/reset?group=billing&topic=orders&to=first")
    assert "40 messages are delivered again" in text(tab, ".consequences")
    tab.click("form[method=post] button.primary")
    assert "continues at the first message" in text(tab, ".notice")


def test_definitions_are_read_from_a_chosen_file(tab, place):
    tab.open(f"{place.url}/definitions/import")
    file = '{"format": "cometmq definitions", "version": 1, "groups": [{"groupName": "chosen"}]}'
    choose = f"""
    const chooser = document.querySelector('input[type=file]');
    const given = new DataTransfer();
    given.items.add(new File([{file!r}], 'definitions.json'));
    chooser.files = given.files;
    chooser.dispatchEvent(new Event('change'));
    new Promise((done) => {{
      const look = () => document.querySelector('textarea').value ? done(1) : setTimeout(look, 10);
      look();
    }})"""
    assert tab.run("document.querySelector('label:has(input[type=file])').hidden") is False
    tab.run(choose)
    tab.submit("textarea", {})
    assert "1 created, 0 changed" in text(tab, "#plan")
    assert "chosen" in text(tab, ".plan tbody")
    tab.click(".plan button.primary")
    assert "1 definition imported" in text(tab, ".notice")


def test_the_theme_is_kept(tab, place):
    tab.open(f"{place.url}/")
    dark = "getComputedStyle(document.body).backgroundColor"
    before = tab.run(dark)
    tab.run("document.getElementById('theme').click(); 1")
    after = tab.run(dark)
    assert after != before
    tab.open(f"{place.url}/topics")
    assert tab.run(dark) == after
    tab.run("document.getElementById('theme').click(); 1")


def test_a_live_page_renews_itself(tab, place):
    tab.open(f"{place.url}/topics")
    tab.run("document.body.dataset.mark = 'same'; document.querySelector('h1').id = 'old'; 1")
    assert tab.run("renew().then(() => document.getElementById('old') === null)")
    assert tab.run("document.body.dataset.mark") == "same"


def test_a_live_page_has_one_renewal_at_a_time(tab, place):
    tab.open(f"{place.url}/topics")
    renewals = """(async () => {
        let count = 0;
        const real = window.fetch;
        window.fetch = (...all) => { count += 1; return real(...all); };
        await Promise.all([renew(), renew(), renew()]);
        await renew();
        return count;
    })()"""
    assert tab.run(renewals) == 2


def test_a_live_page_whose_session_has_ended_leads_to_the_login(tab, place):
    tab.open(f"{place.url}/topics")
    tab.run("window.fetch = async () => ({ok: true, redirected: true}); 1")
    tab.leave("renew()")
    assert text(tab, "h1") == "Topics"


def test_a_ticked_filter_does_not_stop_a_live_page(tab, place):
    tab.open(f"{place.url}/brokers")
    tab.click("tbody a")
    tab.click(".actions a")
    tab.open(tab.run("location.href") + "&differs=1")
    assert tab.run("document.querySelector('input[name=differs]').checked") is True
    assert not tab.run("Boolean(isBusy())")


def test_keys_and_filters(tab, place):
    tab.open(f"{place.url}/topics")
    tab.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true})); 1")
    tab.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert tab.run("document.activeElement.name") == "find"
    tab.submit("input[name=find]", {"input[name=find]": "no-such"})
    assert "Nothing matches" in text(tab, ".empty")
    assert "find=no-such" in tab.run("location.href")


def test_hostile_text_in_messages_is_only_text(tab, place):
    tab.open(f"{place.url}/messages?topic=orders")
    assert "<script>alert(1)</script>" in text(tab, "tbody") or "number" in text(tab, "tbody")
    assert tab.run("document.querySelectorAll('main img, main b, main script').length") == 0


def test_logging_out(tab, place):
    tab.open(f"{place.url}/")
    tab.click("form[action$='/logout'] button")
    assert text(tab, ".tools a.button") == "Log in"
    tab.open(f"{place.url}/topic/create")
    assert text(tab, "h1") == "Log in"


def test_a_phone_shows_the_entry_of_the_page_and_the_newest_figures(tab, place):
    tab.size(375, 800)
    for path in ("/", "/groups", "/audit"):
        tab.open(place.url + path)
        left, right = tab.run(
            "(({left, right}) => [left, right])("
            "document.querySelector('.menu [aria-current]').getBoundingClientRect())"
        )
        assert left >= 0
        assert right < 376  # the browser rounds
    tab.open(f"{place.url}/group?name=billing")
    plot = "document.querySelector('figure.card')"
    assert tab.run(f"{plot}.scrollLeft + {plot}.clientWidth >= {plot}.scrollWidth - 1")
    assert tab.run("document.querySelector('figcaption').getBoundingClientRect().left") >= 0


def test_a_row_keeps_its_name_in_sight(tab, place):
    tab.size(375, 800)
    tab.open(f"{place.url}/topics")
    left = "document.querySelector('tbody th').getBoundingClientRect().left"
    before = tab.run(left)
    tab.run("document.querySelector('.scroll').scrollLeft = 300; 1")
    assert tab.run("document.querySelector('.scroll').scrollLeft") == 300
    assert tab.run(left) == before
    assert tab.run("renew().then(() => document.querySelector('.scroll').scrollLeft)") == 300


def test_times_stay_on_one_line(tab, place):
    tab.open(f"{place.url}/messages?topic=orders")
    assert tab.run("document.querySelector('tbody th time').getClientRects().length") == 1
    place_of = "getComputedStyle(document.querySelector('tbody td.short')).whiteSpace"
    assert tab.run(place_of) == "nowrap"


def test_dead_letters_are_reached_from_their_group(tab, place):
    tab.open(f"{place.url}/group?name=billing")
    tab.click("a[href*='/dead-letters/']")
    assert text(tab, "h1") == "Dead letters of billing"


def test_ticked_dead_letters_are_sent_again_and_one_is_edited(tab, place):
    tab.open(f"{place.url}/dead-letters/group?group=billing")
    tab.run("document.querySelector('input[data-all]').click(); 1")
    assert tab.run("document.querySelectorAll('input[name=ids]:checked').length") == 2
    tab.click("form[method=post][action$='/replay'] button.primary")
    assert text(tab, "#plan") == "Send 2 dead letters of billing again to the group billing"
    assert "%" not in tab.run("location.search")
    tab.run(axe.source() + ";1")
    assert tab.run(RULES) == []
    tab.click(".plan button.primary")
    assert "Sent 2 messages of billing" in text(tab, ".notice")
    tab.click("tbody tr:nth-child(1) a[href*='/dead-letters/edit']")
    tab.submit("textarea", {"textarea": "corrected"})
    assert text(tab, "#plan").startswith("Send a corrected copy of")
    tab.run(axe.source() + ";1")
    assert tab.run(RULES) == []
    assert tab.complaints == []


def test_a_phone_shows_the_values_beside_long_names(tab, place):
    tab.size(375, 800)
    tab.open(f"{place.url}/brokers")
    tab.click("tbody a")
    tab.click(".actions a")
    name, value = tab.run(
        "[...[...document.querySelectorAll('main tbody tr')]"
        ".find((it) => it.textContent.includes('accessMessageInMemoryMaxRatio')).children]"
        ".slice(0, 2).map((it) => [it.textContent, it.getBoundingClientRect().right])"
    )
    assert name[0] == "accessMessageInMemoryMaxRatio"
    assert value[1] <= 375


async def _bury(namesrv, group, count):
    async with AdminClient(namesrv) as admin:
        for topic in (dead_letter_topic(group), retry_topic(group)):
            await admin.create_topic(topic, queue_count=1)
        await admin.create_group(SubscriptionGroupConfig(group_name=group))
        async with Producer("undertakers", namesrv=namesrv) as producer:
            for number in range(count):
                await producer.send(Message(dead_letter_topic(group), b"%d" % number))


def test_a_running_replay_is_followed_survives_a_reload_and_is_stopped(tab, place):
    asyncio.run(_bury(place.namesrv, "slow", 120))
    tab.open(f"{place.url}/dead-letters/replay?group=slow&rate=1")
    tab.click(".plan button.primary")
    assert text(tab, "h1") == "Replay of slow"
    assert "goes on when you leave this page" in text(tab, ".notice")
    sent = "document.querySelector('main progress').value"
    tab.run("document.body.dataset.mark = 'same'; 1")
    follow = f"() => {sent} > 2 ? done(1) : setTimeout(look, 50)"
    tab.run(f"new Promise((done) => {{ const look = {follow}; look(); }})")
    assert tab.run("document.body.dataset.mark") == "same", "it renews itself"
    tab.run(axe.source() + ";1")
    assert tab.run(RULES) == []
    tab.open(f"{place.url}/dead-letters/group?group=slow")
    assert "A replay is running" in text(tab, ".notice")
    tab.click(".notice a")
    assert tab.run(sent) > 2
    tab.click("form[action$='/stop'] button")
    ended = (
        "new Promise((done) => { const look = () => document.querySelector('main progress')"
        " ? setTimeout(look, 50) : done(1); look(); })"
    )
    tab.run(ended)
    assert text(tab, "main .notice:last-of-type").startswith("Stopped: sent")
    assert tab.complaints == []
