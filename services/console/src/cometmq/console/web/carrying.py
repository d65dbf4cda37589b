# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out: checks that it is the one that the user saw, and audits it."""

import secrets
from contextlib import AsyncExitStack
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from starlette.responses import RedirectResponse, Response

from cometmq.client.admin import AdminClient
from cometmq.console.audit import AuditEntry
from cometmq.console.desk import Desk
from cometmq.console.login.accounts import with_account
from cometmq.console.web.action import Action, Plan, Risk
from cometmq.console.web.page import View
from cometmq.console.web.problems import Problem, of_cluster
from cometmq.console.web.rendering import json_answer, wants_json
from cometmq.remoting.errors import CometError


async def carry_out(desk: Desk, action: Action, plan: Plan, view: View, address: str) -> Response:
    """Make a change and lead to the page that shows it; raise Problem if it is not made."""
    _check(desk, action, plan, view)
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
    try:
        await desk.audit.write(entry)
    except OSError as error:
        text = f"nothing was changed: the audit log cannot be written ({error.strerror})"
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, text) from error
    outcome, text = "failed", "the console was stopped, or has a fault"
    try:
        async with AsyncExitStack() as stack:
            text = await plan.perform(await _client(desk, view, stack))
        outcome = "done"
    except CometError as error:
        text = str(error) or type(error).__name__
        raise of_cluster(error) from error
    finally:
        desk.renew()
        ended = msgspec.structs.replace(
            entry, at_ms=desk.audit.now_ms(), outcome=outcome, text=text, before=None, after=None
        )
        await desk.audit.write(ended)
    if wants_json(view.request):
        return json_answer({"outcome": "done", "text": text, "see": plan.leads_to})
    if view.session is not None:
        view.session.notice = text
    assert not urlsplit(plan.leads_to).netloc, "a change leads to a page of the console"
    return RedirectResponse(plan.leads_to, HTTPStatus.SEE_OTHER)


def _check(desk: Desk, action: Action, plan: Plan, view: View) -> None:
    if plan.refusal:
        raise Problem(HTTPStatus.CONFLICT, plan.refusal, title="This cannot be done now")
    if view.raw("mark") != plan.mark(desk.audit.version(plan.subject)):
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{plan.subject} has changed since the page was shown, perhaps by somebody else:"
            " nothing was done. Go back, look at the new state, and decide again.",
        )
    if action.risk is Risk.HIGH and view.raw("confirm").strip() != plan.subject:
        raise Problem(
            HTTPStatus.BAD_REQUEST, f"type the name {plan.subject} to confirm: nothing was done"
        )


async def _client(desk: Desk, view: View, stack: AsyncExitStack) -> AdminClient:
    """Return a client with the user's own account, if there is one."""
    if view.session is None or view.session.credentials is None:
        return desk.admin
    options = with_account(desk.admin.options, view.session.credentials)
    return await stack.enter_async_context(AdminClient(options=options, log=desk.log))
