# SPDX-License-Identifier: Apache-2.0
"""The Debian package installs, runs as its units say, and is removed without a trace but messages.

dpkg works on an overlay of this machine's files that nobody else sees, in a network of its own.
"""

import os
import subprocess
from pathlib import Path
from shutil import which

import debian
import pytest
import release as releasing
import wheels
from tests.packages import guide_commands as guides
from tests.packages.releases import PLATFORM

VERSION = wheels.workspace_version()
DEBIAN_12 = Path("/usr/bin/python3.11")
IS_POSSIBLE = os.geteuid() == 0 and DEBIAN_12.exists() and which("dpkg") and which("unshare")
TIMEOUT_S = 300

# The working folder is $1, the package $2, and the script to run inside is $3.
OVERLAY = r"""
set -eu
ip link set lo up
ip address add 192.0.2.10/32 dev lo
mount -t tmpfs none "$1"
mkdir "$1/new" "$1/work" "$1/root" "$1/kept"
cp "$2" "$4"/systemctl "$4"/sysctl "$1/kept/"
printf '%s' "$3" >"$1/kept/script"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/new,workdir=$1/work" "$1/root"
mount --bind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
mount -t tmpfs none "$1/root/tmp"
mount -t tmpfs none "$1/root/root"
cp "$1/kept"/* "$1/root/root/"
mv "$1/root/root/systemctl" "$1/root/root/sysctl" "$1/root/usr/local/sbin/"
rm -rf "$1/root/opt/cometmq" "$1/root/etc/cometmq" "$1/root/var/lib/cometmq"
exec chroot "$1/root" env -i HOME=/root PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive bash -eu -c 'cd; . ./script'
"""

WHOLE_LIFE = r"""
apt-get install --yes ./cometmq_*.deb >/dev/null
echo "installed $(du -sk /opt/cometmq | cut -f1) KB"
stat -c 'settings %U:%G %a' /etc/cometmq
systemctl start cometmq-namesrv cometmq-broker
grep -o '"sends":"[^"]*"' /tmp/cometmq-broker.log
echo '#changed' >>/etc/cometmq/broker.conf
dpkg --install cometmq_*.deb >/dev/null
tail -n 1 /etc/cometmq/broker.conf
cometmq produce hello 'from a package' >/dev/null
echo "consumed $(cometmq consume hello --from first --max 1)"
systemctl stop cometmq-broker cometmq-namesrv
dpkg --purge cometmq 2>&1 | grep kept
ls -d /opt/cometmq /etc/cometmq /usr/bin/cometmq 2>/dev/null || echo "removed"
ls /var/lib/cometmq/broker/commitlog
"""


def run_inside(package, folder, script):
    """Run a script with the package on a machine without CometMQ; return what it prints."""
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c"]
    done = subprocess.run(
        [*command, OVERLAY, "sh", folder, package, script, Path(__file__).parent / "standins"],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def package(files):
    """Return the package of the release, with the native path where cargo is."""
    return files / f"cometmq_{VERSION}_amd64.deb"


@pytest.mark.skipif(not IS_POSSIBLE, reason="needs root on Debian 12")
def test_the_package_installs_runs_and_goes(package, tmp_path):
    installed, owner, path, setting, consumed, kept, removed, *log = run_inside(
        package, tmp_path, WHOLE_LIFE
    )
    assert int(installed.split()[1]) < 76_000  # KiB; uvicorn, Starlette and Jinja2 are in it
    assert owner == "settings cometmq:cometmq 750"
    is_native = bool(releasing.native_targets([PLATFORM])[0])
    assert path.startswith('"sends":"native"' if is_native else '"sends":"python')
    assert setting == "#changed"
    assert consumed == "consumed from a package"
    assert "/var/lib/cometmq are kept" in kept
    assert removed == "removed"
    assert log, "the commit log is kept"


@pytest.mark.skipif(not IS_POSSIBLE, reason="needs root on Debian 12")
def test_the_guides_work_as_written(package, tmp_path):
    """`systemctl` and `sysctl` have stand-ins, because no systemd runs and the kernel is shared."""
    pages = "systemctl disable --now cometmq-broker@1 cometmq-broker@2\n".join(
        guides.script(name) for name in ("virtual-machine.md", "secure.md")
    )
    assert len(guides.commands("virtual-machine.md")) > 9
    assert len(guides.commands("secure.md")) > 20
    printed = run_inside(package, tmp_path, f"{pages}echo done\n")
    assert printed[-1] == "done"


@pytest.mark.skipif(debian.fault() != "", reason="needs dpkg-deb")
def test_the_package_is_for_the_python_of_debian(package):
    text = subprocess.run(
        ["dpkg-deb", "--field", package], capture_output=True, text=True, check=True
    ).stdout
    assert f"Version: {debian.debian_version(VERSION)}\n" in text
    assert "python3 (>= 3.11), python3 (<< 3.12)" in text
    listed = subprocess.run(
        ["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True
    ).stdout
    assert "__pycache__" not in listed
    for line in listed.splitlines():
        assert line.split()[1] == "root/root", line
        assert line.startswith(("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx")), line


def test_a_pre_release_is_older_than_its_release():
    assert debian.debian_version("0.2.0") == "0.2.0"
    assert debian.debian_version("0.2.0rc1") == "0.2.0~rc1"
    assert debian.debian_version("0.2.0.dev3") == "0.2.0~dev3"
