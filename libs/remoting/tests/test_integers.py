# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.remoting.integers import whole


@pytest.mark.parametrize("text", ["0", "007", "9223372036854775807"])
def test_digits_are_read(text: str) -> None:
    assert whole(text) == whole(text.encode()) == int(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "1.0", "²", "\u0661", "9223372036854775808", "9" * 5_000]
)
def test_other_texts_are_no_numbers(text: str) -> None:
    assert whole(text) is None
    assert whole(text.encode()) is None
