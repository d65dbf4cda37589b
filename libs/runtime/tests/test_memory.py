# SPDX-License-Identifier: Apache-2.0
"""The limit is the minimum of the machine's memory and all enclosing control groups' limits."""

from cometmq.runtime.memory import memory_limit_bytes, physical_bytes


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_groups_the_limit_is_physical_memory(tmp_path):
    assert memory_limit_bytes(tmp_path, tmp_path / "none") == physical_bytes()


def test_version_2_takes_the_smallest_limit_up_to_the_root(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/pod/broker\n")
    root = tmp_path / "fs"
    write(root / "pod/broker/memory.max", "max\n")
    write(root / "pod/memory.max", "1000000\n")
    assert memory_limit_bytes(root, proc) == 1_000_000


def test_version_2_in_a_container_sees_only_its_own_root(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/kubepods/pod1/abc\n")
    write(tmp_path / "fs/memory.max", "524288\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 524288


def test_version_1_reads_the_memory_controller(tmp_path):
    proc = write(tmp_path / "cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/a\n")
    write(tmp_path / "fs/memory/docker/a/memory.limit_in_bytes", "4096\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 4096


def test_a_path_that_leads_out_of_the_root_is_not_followed(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/../..\n")
    write(tmp_path / "fs/memory.max", "8192\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 8192
