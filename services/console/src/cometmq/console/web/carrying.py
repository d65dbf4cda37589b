# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan, after checking that it is the plan that the user saw; writes the
audit log.
"""

import secrets
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response

from cometmq.client.admin import AdminClient
from cometmq.console.audit import AuditEntry, Unaudited
from cometmq.console.desk import Desk
from cometmq.console.login.accounts import with_account
from cometmq.console.web.action import Action, Form
from cometmq.console.web.page import View
from cometmq.console.web.problems import Problem, of_cluster
from cometmq.console.web.rendering import json_answer, redirect, wants_json
from cometmq.insight.changes.change import Plan, Risk
from cometmq.remoting.errors import CometError

BEGUN: Final = "It has begun and goes on by itself: the page at `see` shows how far it is."
"""The answer to a program; a browser is redirected to the page."""


async def carry_out(desk: Desk, action: Action, form: Form, view: View, address: str) -> Response:
    """Make a change and redirect to the page that shows it; raise Problem if it is not made."""
    plan = _checked(desk, action, form, view)
    entry = AuditEntry(
        at_ms=desk.audit.now_ms(),
        id=secrets.token_hex(8),
        user=view.user.name,
        how=view.user.how,
        address=address,
        action=action.name,
        subject=plan.subject,
        outcome="begun",
        before=plan.before,
        after=plan.after,
    )

    async def work() -> str:
        async with desk.audit.noted(entry) as outcome, AsyncExitStack() as stack:
            outcome.text = (await plan.perform(await _client(desk, view, stack))).text
            return outcome.text

    there, is_done = plan.leads_to, True
    try:
        if plan.job is None:
            text = await work()
        elif await desk.jobs.run(plan.job, work):
            text = plan.job.text
        else:
            text, there, is_done = BEGUN, plan.job.page, False
    except Unaudited as error:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    except CometError as error:
        raise of_cluster(error) from error
    finally:
        desk.renew()
    if wants_json(view.request):
        outcome = "done" if is_done else "begun"
        return json_answer({"outcome": outcome, "text": text, "see": there})
    if view.session is not None and is_done:  # the page of what has begun says itself how far it is
        view.session.notice = text
    assert not urlsplit(there).netloc, "a change leads to a page of the console"
    return redirect(there)


def _checked(desk: Desk, action: Action, form: Form, view: View) -> Plan:
    plan = form.plan
    if plan is None:
        raise Problem(HTTPStatus.BAD_REQUEST, "the form is not filled in")
    if plan.refusal:
        raise Problem(HTTPStatus.CONFLICT, plan.refusal, title="This cannot be done now")
    if not view.raw("mark"):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            "the mark is missing: GET returns the plan with its mark, which the POST must repeat",
        )
    if view.raw("mark") != form.mark(desk.audit.version(plan.subject)):
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{plan.subject} has changed since the page was shown, perhaps by somebody else:"
            " nothing was done. Go back, look at the new state, and decide again.",
        )
    if action.risk is Risk.HIGH and view.raw("confirm").strip() != plan.subject:
        raise Problem(
            HTTPStatus.BAD_REQUEST, f"type the name {plan.subject} to confirm: nothing was done"
        )
    return plan


async def _client(desk: Desk, view: View, stack: AsyncExitStack) -> AdminClient:
    """Return a client with the user's own account, if there is one."""
    if view.session is None or view.session.credentials is None:
        return desk.admin
    options = with_account(desk.admin.options, view.session.credentials)
    return await stack.enter_async_context(AdminClient(options=options, log=desk.log))
