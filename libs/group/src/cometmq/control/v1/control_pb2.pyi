from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Target(_message.Message):
    __slots__ = ("group", "ordinal")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    group: str
    ordinal: int
    def __init__(self, group: _Optional[str] = ..., ordinal: _Optional[int] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("ordinal", "incarnation")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    incarnation: str
    def __init__(self, ordinal: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("group", "copy", "role", "promised", "epoch", "last_log_epoch", "max_offset", "tables_epoch", "tables", "standing", "has_lost_master", "lag_bytes", "master", "confirm_offset", "record_uid", "version", "fault", "last_in_sync", "is_full", "has_room", "electors", "group_keys", "risk")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TABLES_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    HAS_LOST_MASTER_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LAST_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    HAS_ROOM_FIELD_NUMBER: _ClassVar[int]
    ELECTORS_FIELD_NUMBER: _ClassVar[int]
    GROUP_KEYS_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    group: str
    copy: Copy
    role: str
    promised: int
    epoch: int
    last_log_epoch: int
    max_offset: int
    tables_epoch: int
    tables: int
    standing: str
    has_lost_master: bool
    lag_bytes: int
    master: int
    confirm_offset: int
    record_uid: str
    version: str
    fault: str
    last_in_sync: _containers.RepeatedCompositeFieldContainer[Copy]
    is_full: bool
    has_room: bool
    electors: int
    group_keys: _containers.RepeatedScalarFieldContainer[str]
    risk: str
    def __init__(self, group: _Optional[str] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., role: _Optional[str] = ..., promised: _Optional[int] = ..., epoch: _Optional[int] = ..., last_log_epoch: _Optional[int] = ..., max_offset: _Optional[int] = ..., tables_epoch: _Optional[int] = ..., tables: _Optional[int] = ..., standing: _Optional[str] = ..., has_lost_master: _Optional[bool] = ..., lag_bytes: _Optional[int] = ..., master: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., record_uid: _Optional[str] = ..., version: _Optional[str] = ..., fault: _Optional[str] = ..., last_in_sync: _Optional[_Iterable[_Union[Copy, _Mapping]]] = ..., is_full: _Optional[bool] = ..., has_room: _Optional[bool] = ..., electors: _Optional[int] = ..., group_keys: _Optional[_Iterable[str]] = ..., risk: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: Target
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("target", "interval_ms")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    target: Target
    interval_ms: int
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class UpdateConfigRequest(_message.Message):
    __slots__ = ("target", "changes")
    class ChangesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    target: Target
    changes: _containers.ScalarMap[str, str]
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ..., changes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateConfigReply(_message.Message):
    __slots__ = ("applied", "needs_restart")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_RESTART_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedScalarFieldContainer[str]
    needs_restart: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, applied: _Optional[_Iterable[str]] = ..., needs_restart: _Optional[_Iterable[str]] = ...) -> None: ...
