# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the pages of messages."""

import re

from .desks import JSON, VIEWER, hidden

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7777*7777}}\u202e"
TOPIC = "Paged"


async def data(site, path, **params):
    answer = await site.web.get(path, params=params, headers={**JSON, **VIEWER})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def page(site, path, **params):
    answer = await site.web.get(path, params=params, headers={"accept": "text/html", **VIEWER})
    assert answer.status_code == 200, answer.text
    return answer.text


async def carry_out(site, path, form, **more):
    """Confirm an action as a browser does."""
    shown = await site.web.get(path, params=form)
    assert shown.status_code == 200, shown.text
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', shown.text)
    sent = [(key, value) for key, value in fields if key != "csrf"]
    body = {"csrf": hidden(shown, "csrf"), **form, **more}
    for key, value in sent:
        body.setdefault(key, value)
    return await site.web.post(path, data=body)
