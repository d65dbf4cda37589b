# SPDX-License-Identifier: Apache-2.0
"""Suggestions for mistyped names."""

import pytest

from cometmq.remoting.spelling import closest

KNOWN = ("billing", "billing-retry", "shipping", "mailer")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("biling", "billing"),
        ("Mailer", "mailer"),
        ("ship", "shipping"),  # the only one that begins like this
        ("bill", None),  # two do
        ("sh", None),
        ("reports", None),
    ],
)
def test_the_most_similar_name_is_found_else_the_only_one_that_begins_alike(name, found):
    assert closest(name, KNOWN) == found
