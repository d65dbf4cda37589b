# SPDX-License-Identifier: Apache-2.0
"""Which claims of an epoch are believed, with a proof and without."""

import pytest

from cometmq.namesrv.epochs import CONTESTED_MS, EPOCHS_SPARE, Epochs, Verdict

DOUBT_MS = 10_000
HUGE = 2**62
RETRY_MS = 750


@pytest.fixture
def epochs():
    return Epochs(DOUBT_MS)


def claims(epochs, epoch, now_ms, *, is_proven=False):
    """Register if that is accepted; return the verdict."""
    verdict = epochs.judge("g", epoch, is_proven=is_proven, now_ms=now_ms)
    if verdict is Verdict.ACCEPTED:
        epochs.note("g", epoch, is_proven=is_proven, now_ms=now_ms)
    return verdict


def keeps_claiming(epochs, epoch, now_ms):
    """Claim an epoch as a refused broker does; return when it is accepted."""
    for at_ms in range(now_ms, now_ms + 10 * DOUBT_MS, RETRY_MS):
        if claims(epochs, epoch, at_ms) is Verdict.ACCEPTED:
            return at_ms - now_ms
    raise AssertionError("never accepted")


def test_a_huge_epoch_of_a_stranger_is_not_believed(epochs):
    claims(epochs, 5, 0)
    assert claims(epochs, HUGE, 1_000) is Verdict.IMPLAUSIBLE
    assert claims(epochs, 5, 1_001) is Verdict.ACCEPTED
    assert claims(epochs, 6, 1_002) is Verdict.ACCEPTED
    assert (epochs.of("g"), epochs.refused_count) == (6, 1)


def test_an_epoch_may_rise_as_often_as_elections_may_have_been_held(epochs):
    claims(epochs, 5, 0)
    assert claims(epochs, 5 + EPOCHS_SPARE + 1, 999) is Verdict.IMPLAUSIBLE
    assert claims(epochs, 5 + EPOCHS_SPARE + 60, 60_000) is Verdict.ACCEPTED


@pytest.mark.parametrize("first", [1, HUGE])
def test_a_stranger_that_came_first_excludes_the_master_only_for_a_while(epochs, first):
    claims(epochs, first, 0)
    assert keeps_claiming(epochs, 500, 20) <= DOUBT_MS + RETRY_MS
    assert epochs.is_contested("g", DOUBT_MS + RETRY_MS)
    # Neither claim excludes the other any more, however often they are repeated.
    for now_ms in range(20_000, 40_000, RETRY_MS):
        assert claims(epochs, first, now_ms) is Verdict.ACCEPTED
        assert claims(epochs, 500, now_ms) is Verdict.ACCEPTED
    assert claims(epochs, 501, 40_000 + CONTESTED_MS) is Verdict.ACCEPTED
    assert not epochs.is_contested("g", 40_000 + CONTESTED_MS)


def test_a_deposed_master_is_refused_until_it_notices(epochs):
    claims(epochs, 5, 0)
    claims(epochs, 6, 1_000)
    for now_ms in range(1_000, 7_000, 500):
        assert claims(epochs, 5, now_ms) is Verdict.STALE
    assert epochs.refusals("g") == 12
    # A later one begins anew: only one that keeps trying is believed.
    assert claims(epochs, 5, 60_000) is Verdict.STALE


def test_a_proof_outranks_every_claim_and_ends_what_has_none(epochs):
    claims(epochs, HUGE, 0)
    assert claims(epochs, 5, 1, is_proven=True) is Verdict.ACCEPTED
    assert epochs.of("g") == 5
    for epoch in (5, 6, HUGE, None):
        assert claims(epochs, epoch, 2) is Verdict.UNPROVEN
    assert claims(epochs, HUGE, 3, is_proven=True) is Verdict.ACCEPTED
    for now_ms in range(4, 10 * DOUBT_MS, RETRY_MS):  # a proven epoch excludes for good
        assert claims(epochs, 5, now_ms, is_proven=True) is Verdict.STALE


def test_brokers_without_epochs_are_accepted_and_forgotten_groups_begin_anew(epochs):
    assert claims(epochs, None, 0) is Verdict.ACCEPTED
    assert list(epochs.names()) == []
    claims(epochs, 57, 0)
    assert claims(epochs, None, 0) is Verdict.ACCEPTED
    epochs.forget("g")
    assert claims(epochs, 1, 1) is Verdict.ACCEPTED
