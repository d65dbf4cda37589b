# SPDX-License-Identifier: Apache-2.0
"""Definitions on a real suite with accounts: export, preview, import."""

import json
from contextlib import AsyncExitStack

import pytest

from cometmq.insight.definitions import FORMAT

from .desks import ADMIN, JSON, VIEWER, hidden
from .test_on_a_suite import log_in


def bearer(desk):
    return {"authorization": f"Bearer {desk.token}", **JSON}


async def preview(desk, file, **form):
    """Post a file from the form of the import; return the page with its plan."""
    page = await desk.web.get("/definitions/import")
    form = {"csrf": hidden(page, "csrf"), "file": json.dumps(file), **form}
    return await desk.web.post("/definitions/import", data=form)


async def confirm(desk, page, file, **form):
    tokens = {name: hidden(page, name) for name in ("csrf", "mark")}
    form = {**tokens, "file": json.dumps(file), **form}
    return await desk.web.post("/definitions/import", data=form)


async def test_definitions_are_exported_previewed_and_imported(desk):
    await log_in(desk)
    await desk.admin.create_topic("broker-defined", queue_count=2)
    page = await desk.web.get("/definitions?find=defined")
    assert "2/2 queues" in page.text
    saved = await desk.web.get("/definitions?download=1")
    assert "definitions.json" in saved.headers["content-disposition"]
    file = json.loads(saved.content)
    assert [it["accessKey"] for it in file["accounts"]] == ["chief-key", "reader-key"]
    assert "secret" not in saved.text
    assert "already like this" in (await preview(desk, file)).text
    mine = next(it for it in file["topics"] if it["topicName"] == "broker-defined")
    mine["readQueueNums"] = mine["writeQueueNums"] = 3
    file["groups"].append({"groupName": "broker-definers"})
    page = await preview(desk, file)
    assert "readQueueNums 2 -&gt; 3; writeQueueNums 2 -&gt; 3" in page.text
    assert "1 created, 1 changed" in page.text
    answer = await confirm(desk, page, file)
    assert answer.status_code == 303, answer.text
    assert "2 definitions imported." in (await desk.web.get("/definitions")).text
    assert len(await desk.admin.queues("broker-defined")) == 3
    audit = (await desk.web.get("/audit", headers=JSON)).json()["data"][0]
    assert audit["begun"]["action"] == "definitions.import"
    assert any("group broker-definers" in it for it in audit["begun"]["after"])
    answer = await confirm(desk, page, file)
    assert answer.status_code == 409, "the cluster is not as it was on the page"


async def test_accounts_are_imported_with_their_secret_keys(desk):
    await log_in(desk)
    file = {"format": FORMAT, "version": 1,
            "accounts": [{"accessKey": "defined-key", "topicPerms": ["defined=PUB"]}]}  # fmt: skip
    page = await preview(desk, file)
    assert "Secret keys of defined-key" in page.text
    answer = await confirm(desk, page, file)
    assert answer.status_code == 400
    assert "the secret keys of defined-key are missing" in answer.text
    page = await preview(desk, file, secrets="typed too early")
    assert "typed too early" not in page.text
    answer = await confirm(desk, page, file, secrets="defined-key defined-secret")
    assert answer.status_code == 303, answer.text
    (master,) = (await desk.admin.masters()).values()
    accounts = {it.access_key: it for it in (await master.acl_config()).plain_access_configs}
    assert accounts["defined-key"].topic_perms == ["defined=PUB"]
    audit = await desk.web.get("/audit")
    assert "defined-secret" not in audit.text
    await master.delete_account("defined-key")


async def test_programs_import_with_two_requests(desk):
    file = json.dumps({"format": FORMAT, "version": 1, "groups": [{"groupName": "by-program"}]})
    asked = await desk.web.post("/definitions/import", data={"file": file}, headers=bearer(desk))
    plan = asked.json()["plan"]
    assert [it["name"] for it in plan["details"]["rows"]] == ["by-program"]
    form = {"file": file, "mark": plan["mark"]}
    done = await desk.web.post("/definitions/import", data=form, headers=bearer(desk))
    assert done.json()["text"] == "1 definition imported."
    assert "by-program" in await desk.admin.groups()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("{", "the file is wrong"),
        ('{"format": "x"}', "no file of definitions"),
        (f'{{"format": "{FORMAT}", "version": 9}}', "the version 9"),
        (f'{{"format": "{FORMAT}", "version": 1, "queues": []}}', "unknown field"),
    ],
)
async def test_a_wrong_file_is_refused(sites, file, text):
    site = sites()
    answer = await site.web.post(
        "/definitions/import", data={"file": file}, headers={**ADMIN, **JSON}
    )
    assert answer.status_code == 400
    assert text in answer.json()["text"]


async def test_nothing_is_imported_if_a_part_is_refused(desk):
    await log_in(desk)
    file = {"format": FORMAT, "version": 1, "groups": [{"groupName": "kept-out"}],
            "topics": [{"topicName": "SCHEDULE_TOPIC_XXXX", "readQueueNums": 1,
                        "writeQueueNums": 1}]}  # fmt: skip
    page = await preview(desk, file)
    assert "1 definition refused" in page.text
    assert "servers create this topic themselves" in page.text
    assert 'name="mark"' not in page.text
    page = await preview(desk, file, skip_refused="1")
    assert (await confirm(desk, page, file, skip_refused="1")).status_code == 303
    assert "kept-out" in await desk.admin.groups()


async def test_only_operators_see_accounts_and_only_admins_import(suite, start_console, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("eye viewer viewer-token-0123456789\n")
    async with AsyncExitStack() as stack:
        desk = await start_console(suite, stack=stack, tokenFile=str(tokens))
        page = await desk.web.get("/definitions", headers={**VIEWER, **JSON})
        assert page.json()["data"]["accounts"] == []
        page = await desk.web.get("/definitions/import", headers={**VIEWER, **JSON})
        assert page.status_code == 403
