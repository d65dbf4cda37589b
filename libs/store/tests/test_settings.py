# SPDX-License-Identifier: Apache-2.0
import msgspec
import pytest

from cometmq.store.delay_levels import DelayLevels
from cometmq.store.settings import CQ_ENTRY_BYTES, FlushDiskType, StoreSettings
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk


def from_properties(**values):
    return msgspec.convert(values, StoreSettings, strict=False)


def test_names_are_rocketmqs():
    names = {field.encode_name for field in msgspec.structs.fields(StoreSettings)}
    for name in [
        "storePathRootDir",
        "storePathCommitLog",
        "mappedFileSizeCommitLog",
        "flushDiskType",
        "mappedFileSizeConsumeQueue",
        "checkCRCOnRecover",
        "maxHashSlotNum",
        "destroyMapedFileIntervalForcibly",
        "osPageCacheBusyTimeOutMills",
        "warmMapedFileEnable",
        "haSlaveFallbehindMax",
    ]:
        assert name in names


def test_values_of_a_file_are_read():
    settings = from_properties(
        flushDiskType="SYNC_FLUSH", maxMessageSize="100", checkCRCOnRecover="false"
    )
    assert settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert settings.max_message_size == 100
    assert not settings.check_crc_on_recover


@pytest.mark.parametrize(
    "values",
    [
        {"mappedFileSizeCommitLog": "10"},
        {"deleteWhen": "noon"},
        {"deleteWhen": "25"},
        {"deleteWhen": "04;24"},
        {"deleteWhen": "4,5"},
        {"messageDelayLevel": "1x"},
        {"messageDelayLevel": "1s5s"},
        {"messageDelayLevel": "999999999d"},
        {"haMasterAddress": "10.0.0.1"},
        {"haMasterAddress": "10.0.0.1:x"},
        {"storePathCommitLog": "/a,/b"},
        {"diskMaxUsedSpaceRatio": "101"},
        {"flushDiskType": "LATER"},
    ],
)
def test_bad_values_are_refused(values):
    with pytest.raises(msgspec.ValidationError):
        from_properties(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"deleteWhen": "4"},
        {"deleteWhen": "00;04; 23;"},
        {"deleteWhen": "99"},
        {"messageDelayLevel": " 1s  30m 2h 10d "},
        {"haMasterAddress": ""},
        {"haMasterAddress": "[::1]:10912"},
    ],
)
def test_good_values_are_accepted(values):
    from_properties(**values)


def test_a_queue_file_holds_whole_entries():
    disk = MemoryDisk()
    rig = StoreRig(disk, small_settings(mapped_file_size_consume_queue=201))
    rig.put(make_message())
    rig.work(3)
    (name,) = disk.names("/store/consumequeue/T/0")
    assert len(disk.contents[f"/store/consumequeue/T/0/{name}"]) == 220
    assert CQ_ENTRY_BYTES == 20


def test_a_log_in_a_folder_of_its_own():
    disk = MemoryDisk()
    settings = small_settings(store_path_commit_log="/elsewhere/log")
    rig = StoreRig(disk, settings)
    rig.put(make_message(body=b"x"))
    rig.store.close()
    assert disk.names("/elsewhere/log") == ["0" * 20]
    assert StoreRig(disk, settings).store.reader.max_offset("T", 0) == 1


def test_delay_levels():
    levels = DelayLevels.parse("1s 2m 3h 1d")
    assert levels.level_max == 4
    assert [levels.delay_ms(level) for level in range(6)] == [
        1_000,
        1_000,
        120_000,
        10_800_000,
        86_400_000,
        1_000,
    ]
