# SPDX-License-Identifier: Apache-2.0
"""Strangers who guess from many addresses do not lock out the users of a console."""

from http import HTTPStatus

import pytest

from cometmq.console.app import known_from
from cometmq.console.audit import Audit, AuditEntry
from cometmq.console.login.gate import PER_ADDRESS_MAX, TOTAL_MAX, Attempts
from cometmq.console.web.guard import KNOWN_MAX, Known
from cometmq.remoting.log import NO_LOG
from cometmq.testing.runtime.clock import FakeClock

from .desks import JSON, OPERATOR


@pytest.fixture
def known():
    return Known()


@pytest.fixture
def attempts(known):
    return Attempts(FakeClock(), known)


def flood(attempts, first=0):
    for number in range(first, first + TOTAL_MAX):
        attempts.begin("token", f"10.9.{number // 250}.{number % 250}")


async def test_a_flood_locks_no_address_from_which_a_user_has_logged_in(sites):
    site = sites()
    assert (await site.log_in()).status_code == HTTPStatus.SEE_OTHER
    for number in range(TOTAL_MAX):
        wrong = {"authorization": "Bearer guess-guess-guess-guess", **JSON}
        stranger = site.browser(f"10.9.{number // 250}.{number % 250}")
        assert (await stranger.get("/audit", headers=wrong)).status_code == HTTPStatus.UNAUTHORIZED
    same = site.browser("127.0.0.1")
    assert (await site.log_in(web=same)).status_code == HTTPStatus.SEE_OTHER
    new = site.browser("10.8.0.1")
    assert (await site.log_in(web=new)).status_code == HTTPStatus.TOO_MANY_REQUESTS
    site.clock.advance(60_000)
    assert (await site.log_in(web=new)).status_code == HTTPStatus.SEE_OTHER


async def test_a_flood_does_not_stop_programs_with_a_token(sites):
    site = sites()
    headers = {**OPERATOR, **JSON}
    program = site.browser("10.8.0.2")
    assert (await program.get("/audit", headers=headers)).status_code == HTTPStatus.OK
    for number in range(TOTAL_MAX):
        wrong = {"authorization": "Bearer guess-guess-guess-guess", **JSON}
        await site.browser(f"10.9.{number // 250}.{number % 250}").get("/audit", headers=wrong)
    assert (await program.get("/audit", headers=headers)).status_code == HTTPStatus.OK


def test_a_known_address_may_not_guess_more_than_others(attempts):
    attempts.succeeded("chief", "10.8.0.1")
    for number in range(PER_ADDRESS_MAX):
        assert not attempts.wait_s(f"name-{number}", "10.8.0.1")
        attempts.begin(f"name-{number}", "10.8.0.1")
    assert attempts.wait_s("chief", "10.8.0.1")


def test_only_the_latest_addresses_are_remembered(attempts, known):
    for number in range(KNOWN_MAX + 1):
        known.add(f"10.{number // 62500}.{number // 250 % 250}.{number % 250}")
        known.add("10.200.0.1")
    flood(attempts)
    assert attempts.wait_s("chief", "10.0.0.0")
    assert not attempts.wait_s("chief", "10.200.0.1")


def test_the_addresses_of_one_ipv6_network_count_as_one(attempts):
    for number in range(PER_ADDRESS_MAX):
        attempts.begin(f"name-{number}", f"2001:db8::{number:x}")
    assert attempts.wait_s("chief", "2001:db8::ffff")
    assert not attempts.wait_s("chief", "2001:db8:0:1::1")


async def test_a_flood_after_a_restart_locks_no_address_from_which_users_made_changes(tmp_path):
    audit = Audit(tmp_path, mib_max=1, clock=FakeClock(), log=NO_LOG)
    for user, address in (("chief", "10.8.0.1"), ("", "10.8.0.2")):
        entry = AuditEntry(
            at_ms=1, id=address, user=user, how="token", address=address, action="topic.create",
            subject="orders", outcome="begun",
        )  # fmt: skip
        await audit.write(entry)
    attempts = Attempts(FakeClock(), await known_from(audit))
    audit.close()
    flood(attempts)
    assert not attempts.wait_s("chief", "10.8.0.1")
    assert attempts.wait_s("chief", "10.8.0.2"), "a visitor without a login is a stranger"
    assert attempts.wait_s("chief", "10.8.0.3")


async def test_a_log_that_cannot_be_read_is_no_reason_not_to_start(tmp_path):
    (tmp_path / "audit.log").mkdir()
    audit = Audit(tmp_path, mib_max=1, clock=FakeClock(), log=NO_LOG)
    assert "10.8.0.1" not in await known_from(audit)
    audit.close()
