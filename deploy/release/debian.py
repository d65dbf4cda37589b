# SPDX-License-Identifier: Apache-2.0
"""Makes the Debian package: the programs in `/opt/cometmq`, their settings, and units of systemd.

The package contains everything from our wheels and the locked wheels of third parties, so that an
installation needs no package index. It is for Debian 12, because most of these wheels fit only one
version of Python. The same inputs give the same bytes.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from shutil import which
from typing import Final

from wheels import ROOT

PYTHON: Final = "3.11"
"""The Python of Debian 12."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
SYSTEMD: Final = ROOT / "deploy/systemd"
SCRIPTS: Final = Path(__file__).parent / "debian"
HOME: Final = "opt/cometmq"
PACKAGES: Final = f"{HOME}/lib/python{PYTHON}/site-packages"
CONFIG: Final = "pyvenv.cfg"
COMMAND: Final = """\
#!/opt/cometmq/bin/python
import sys

from cometmq.cli.entry import main

sys.exit(main())
"""
COPYRIGHT: Final = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: CometMQ

Files: *
Copyright: the authors of CometMQ
License: Apache-2.0
 On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.
 The licences of third-party packages are in /opt/cometmq, in their dist-info folders.
"""


def fault() -> str:
    """Return why no Debian package can be made here, or an empty string."""
    return "" if which("dpkg-deb") else "dpkg-deb is missing (Debian: apt-get install dpkg)"


def debian_version(version: str) -> str:
    """Return a version in Debian's form, in which a pre-release is older than its release."""
    return re.sub(r"(?:\.dev|a|b|rc)\d+", lambda match: "~" + match[0].lstrip("."), version)


def _pip(*words: str | Path, machine: str) -> None:
    """Run pip for the Python and the architecture of the package instead of those of this host."""
    platforms = [f"manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_28")]
    command: list[str | Path] = [
        sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}",
        *(f"--platform={name}" for name in platforms),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def _programs(tree: Path, files: Path, version: str, *, machine: str) -> None:
    """Write `/opt/cometmq`: a virtual environment for Debian's Python, without pip."""
    with tempfile.TemporaryDirectory() as name:
        others, target = Path(name) / "wheels", Path(name) / "packages"
        lock = files / "requirements.txt"
        # The wheels are for another Python than this one, so pip cannot check what they depend on.
        # The resolver below does.
        _pip("download", "--no-deps", "--require-hashes", "--requirement", lock, "--dest", others,
             machine=machine)  # fmt: skip
        _pip("install", "--no-compile", "--no-index", "--find-links", others, "--find-links", files,
             "--target", target, f"cometmq=={version}", machine=machine)  # fmt: skip
        shutil.rmtree(target / "bin", ignore_errors=True)  # scripts for the Python of this host
        shutil.copytree(target, tree / PACKAGES)
    programs = tree / HOME / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(f"/usr/bin/python{PYTHON}")
    command = programs / "cometmq"
    command.write_text(COMMAND, encoding="utf-8")
    command.chmod(0o755)
    text = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    (tree / HOME / CONFIG).write_text(text, encoding="utf-8")


def _host_files(tree: Path) -> list[str]:
    """Write the units, the user and the settings; return the paths of the settings."""
    places = {
        "usr/lib/systemd/system": sorted(SYSTEMD.glob("*.service")),
        "etc/cometmq": sorted(SYSTEMD.glob("*.conf")),
        f"{HOME}/share": [SYSTEMD / "README.md", ROOT / "LICENSE"],
    }
    for folder, found in places.items():
        (tree / folder).mkdir(parents=True, exist_ok=True)
        for path in found:
            shutil.copyfile(path, tree / folder / path.name)
    for place, text in {
        "usr/lib/sysusers.d/cometmq.conf": (SYSTEMD / "cometmq.sysusers").read_text("utf-8"),
        "usr/share/doc/cometmq/copyright": COPYRIGHT,
    }.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        (tree / place).write_text(text, encoding="utf-8")
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin/cometmq").symlink_to("/opt/cometmq/bin/cometmq")
    return [f"/etc/cometmq/{path.name}" for path in places["etc/cometmq"]]


def _control(tree: Path, version: str, settings: Iterable[str], *, architecture: str) -> None:
    folder = tree / "DEBIAN"
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    folder.mkdir()
    major, minor = PYTHON.split(".")
    (folder / "control").write_text(
        f"""\
Package: cometmq
Version: {debian_version(version)}
Architecture: {architecture}
Maintainer: the authors of CometMQ <cometmq@localhost>
Installed-Size: {size}
Depends: python3 (>= {PYTHON}), python3 (<< {major}.{int(minor) + 1}), libc6 (>= 2.28), systemd
Section: net
Priority: optional
Description: message broker that speaks the protocol of RocketMQ 4.9
 Name server, broker, tools and Python client, as services of systemd.
""",
        encoding="utf-8",
    )
    (folder / "conffiles").write_text("".join(f"{path}\n" for path in settings), encoding="utf-8")
    for script in sorted(SCRIPTS.iterdir()):
        shutil.copyfile(script, folder / script.name)
        (folder / script.name).chmod(0o755)


def _set_modes(tree: Path) -> None:
    """Set the modes of the package's files, which must not depend on the umask."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            is_program = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_program else 0o644)


def package(files: Path, version: str, machine: str, *, epoch: int) -> Path:
    """Make the package from the wheels and the `requirements.txt` of a release; return its path."""
    architecture = ARCHITECTURES[machine]
    target = files / f"cometmq_{debian_version(version)}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        _programs(tree, files, version, machine=machine)
        settings = _host_files(tree)
        _control(tree, version, settings, architecture=architecture)
        _set_modes(tree)
        environment = {
            **os.environ,  # noqa: TID251  # passed on to a child
            "SOURCE_DATE_EPOCH": str(epoch), "DPKG_DEB_THREADS_MAX": "1",
        }  # fmt: skip
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(target)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    return target
