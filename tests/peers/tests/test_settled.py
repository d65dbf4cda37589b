# SPDX-License-Identifier: Apache-2.0
"""Two sources are polled until they agree; an error shows a lasting difference."""

from pathlib import Path

import pytest

from cometmq.peers import settled
from cometmq.peers.errors import PeerError


def test_the_value_that_both_agree_on_is_returned() -> None:
    said = iter([1, 2, 2, 3])
    assert settled.agreed(lambda: next(said), lambda: 3) == 3


def test_a_lasting_difference_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "SETTLE_TIMEOUT_S", 0.0)
    with pytest.raises(PeerError, match="'mine'\n'theirs'"):
        settled.agreed(lambda: "mine", lambda: "theirs")


def test_a_file_that_is_away_has_no_text(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    assert settled.text_of(path) == ""
    path.write_text("grün", encoding="utf-8")
    assert settled.text_of(path) == "grün"
