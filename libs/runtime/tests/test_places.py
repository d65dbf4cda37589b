# SPDX-License-Identifier: Apache-2.0
"""Errors for unusable ports and folders give the reason and the setting to change."""

import errno
import os
import socket
from pathlib import Path

import pytest

from cometmq.remoting.errors import SettingsError
from cometmq.runtime import places
from cometmq.runtime.places import check_port, free_port, listening, prepare_folder


def refusal(number: int, host: str = "127.0.0.1", note: str = "", port: int = 80) -> str:
    with (
        pytest.raises(SettingsError) as caught,
        listening(host, port, setting="--port", host_setting="--bind", note=note),
    ):
        raise OSError(number, "whatever the loop says")
    return str(caught.value)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "stop the program that uses the port, or choose another with --port"),
        (errno.EACCES, "choose a port above 1023 with --port"),
        (
            errno.EADDRNOTAVAIL,
            "choose an address of this machine with --bind, or another port with --port",
        ),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
        (errno.ENOBUFS, "free memory"),
    ],
)
def test_a_port_that_cannot_be_used(number: int, advice: str) -> None:
    expected = f"cannot listen on 127.0.0.1:80: {os.strerror(number)}; {advice}"
    assert refusal(number) == expected


def test_a_high_port_is_not_refused_for_its_number() -> None:
    assert "let this program use the port" in refusal(errno.EACCES, port=10911)


def test_the_place_shows_all_addresses_and_ipv6() -> None:
    assert refusal(errno.EADDRINUSE, "").startswith("cannot listen on *:80: Address already")
    assert refusal(errno.EADDRINUSE, "::1", "HA").startswith("cannot listen on [::1]:80 (HA): ")


def test_a_name_without_address_keeps_its_reason() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with (
        pytest.raises(SettingsError, match="Name or service not known; choose an address"),
        listening("no.such.host", 80, setting="--port"),
    ):
        raise error


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", ""])
def test_a_free_port_can_be_used_with_its_neighbours(host: str) -> None:
    port = free_port(host, (-2, 0, 1))
    assert 22_000 <= port < 32_000
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for distance in (-2, 0, 1):
        socket.create_server((host, port + distance), family=family).close()


def test_without_a_free_port_an_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(places, "_PORTS", [taken.getsockname()[1]])
        with pytest.raises(OSError, match="Address already in use"):
            free_port("127.0.0.1")


def test_a_host_of_another_machine_has_no_free_port() -> None:
    with pytest.raises(OSError, match="assign"):
        free_port("192.0.2.1")


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b", setting="--data")
    prepare_folder(tmp_path / "a" / "b", setting="--data")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_file_in_the_way_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError) as caught:
        prepare_folder(tmp_path / "file" / below, setting="--data")
    assert str(caught.value) == (
        f"cannot write to the folder {tmp_path / 'file' / below}: {tmp_path}/file is a file, "
        "not a folder; move it away, or choose another folder with --data"
    )


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the creation of a file fail with the errno that the test puts into this list."""
    numbers: list[int] = []

    def refuse(*_: object) -> None:
        raise OSError(numbers[0], os.strerror(numbers[0]))

    monkeypatch.setattr(Path, "touch", refuse)
    return numbers


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EACCES, "Permission denied; give this user the right to write there, or choose"),
        (errno.EMFILE, "Too many open files; raise the limit"),
        (errno.EROFS, "Read-only file system; choose another folder with --data"),
    ],
)
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, refusing: list[int], number: int, text: str
) -> None:
    refusing.append(number)
    with pytest.raises(SettingsError) as caught:
        prepare_folder(tmp_path, setting="--data")
    assert str(caught.value).startswith(f"cannot write to the folder {tmp_path}: {text}")


def test_a_full_disk_does_not_prevent_the_start(tmp_path: Path, refusing: list[int]) -> None:
    refusing.append(errno.ENOSPC)
    prepare_folder(tmp_path / "data", setting="--data")
    assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", ""])
def test_a_port_is_checked_without_listening(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for a program connected to the check, and was reset."""
    listened: list[str] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(socket.socket, "listen", lambda *_: listened.append(host))
        with pytest.raises(SettingsError, match=f":{port}: Address already in use; .*--port"):
            check_port(host, port, setting="--port")
    check_port(host, port, setting="--port")
    assert listened == []
