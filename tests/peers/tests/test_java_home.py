# SPDX-License-Identifier: Apache-2.0
"""The folder of settings that Java's programs in several test processes share."""

from pathlib import Path

from cometmq.peers.java import java_home


def test_a_complete_file_stays_and_another_one_is_replaced_as_a_whole(tmp_path: Path) -> None:
    home = java_home(tmp_path)
    path = home / "conf/logback_tools.xml"
    complete = path.read_bytes()
    with path.open("rb") as before:
        assert java_home(tmp_path) == home
        assert path.stat().st_ino == Path(f"/proc/self/fd/{before.fileno()}").stat().st_ino
    path.write_bytes(complete[:100])
    with path.open("rb") as reading:
        java_home(tmp_path)
        assert reading.read() == complete[:100]
    assert path.read_bytes() == complete
    assert len(list(path.parent.iterdir())) == 4
