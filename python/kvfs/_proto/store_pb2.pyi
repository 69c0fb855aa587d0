from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ASYNCHRONOUS: Durability
DESCRIPTOR: _descriptor.FileDescriptor
DURABLE: Durability
LOCK_EXCLUSIVE: LockMode
LOCK_SHARED: LockMode
SERIALIZABLE: Isolation
SNAPSHOT: Isolation

class AbortRequest(_message.Message):
    __slots__ = ["txn"]
    TXN_FIELD_NUMBER: _ClassVar[int]
    txn: int
    def __init__(self, txn: _Optional[int] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ["doomed"]
    DOOMED_FIELD_NUMBER: _ClassVar[int]
    doomed: str
    def __init__(self, doomed: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ["durability", "operations", "txn"]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    durability: Durability
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    txn: int
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., txn: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ["idle_ms_max", "isolation", "label", "nice", "tied", "timeout_ms"]
    IDLE_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    NICE_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    idle_ms_max: int
    isolation: Isolation
    label: str
    nice: int
    tied: bool
    timeout_ms: int
    def __init__(self, isolation: _Optional[_Union[Isolation, str]] = ..., nice: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., tied: bool = ..., label: _Optional[str] = ..., idle_ms_max: _Optional[int] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ["txn"]
    TXN_FIELD_NUMBER: _ClassVar[int]
    txn: int
    def __init__(self, txn: _Optional[int] = ...) -> None: ...

class ChangeKeyspaceRequest(_message.Message):
    __slots__ = ["gid", "mode", "name", "uid"]
    GID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    gid: int
    mode: int
    name: str
    uid: int
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ["durability", "txn"]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    durability: Durability
    txn: int
    def __init__(self, txn: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Conflict(_message.Message):
    __slots__ = ["key", "keyspace", "message", "other", "place", "txn"]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    keyspace: str
    message: str
    other: str
    place: str
    txn: int
    def __init__(self, message: _Optional[str] = ..., txn: _Optional[int] = ..., other: _Optional[str] = ..., place: _Optional[str] = ..., keyspace: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class CreateKeyspaceRequest(_message.Message):
    __slots__ = ["exclusive", "mode", "name"]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    exclusive: bool
    mode: int
    name: str
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[int] = ..., exclusive: bool = ...) -> None: ...

class DeleteRangeRequest(_message.Message):
    __slots__ = ["durability", "keyspace", "range", "txn"]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    durability: Durability
    keyspace: str
    range: KeyRange
    txn: int
    def __init__(self, keyspace: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., txn: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ["durability", "key", "keyspace", "txn"]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    durability: Durability
    key: bytes
    keyspace: str
    txn: int
    def __init__(self, keyspace: _Optional[str] = ..., key: _Optional[bytes] = ..., txn: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ["existed"]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: bool = ...) -> None: ...

class DropKeyspaceRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropKeyspaceResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class FileLock(_message.Message):
    __slots__ = ["length", "offset", "path"]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    length: int
    offset: int
    path: bytes
    def __init__(self, path: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ["key", "keyspace", "snapshot", "txn"]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    keyspace: str
    snapshot: str
    txn: int
    def __init__(self, keyspace: _Optional[str] = ..., key: _Optional[bytes] = ..., txn: _Optional[int] = ..., snapshot: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ["value"]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ["mount", "version"]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    mount: str
    version: str
    def __init__(self, version: _Optional[str] = ..., mount: _Optional[str] = ...) -> None: ...

class KeyLock(_message.Message):
    __slots__ = ["keyspace", "prefix", "range"]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    prefix: bytes
    range: KeyRange
    def __init__(self, keyspace: _Optional[str] = ..., prefix: _Optional[bytes] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ["end", "start"]
    END_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    end: bytes
    start: bytes
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ["key", "value"]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class KeyspaceInfo(_message.Message):
    __slots__ = ["gid", "mode", "name", "uid"]
    GID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    gid: int
    mode: int
    name: str
    uid: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., mode: _Optional[int] = ...) -> None: ...

class ListKeyspacesRequest(_message.Message):
    __slots__ = ["snapshot"]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    def __init__(self, snapshot: _Optional[str] = ...) -> None: ...

class ListKeyspacesResponse(_message.Message):
    __slots__ = ["keyspaces"]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    keyspaces: _containers.RepeatedCompositeFieldContainer[KeyspaceInfo]
    def __init__(self, keyspaces: _Optional[_Iterable[_Union[KeyspaceInfo, _Mapping]]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ["transactions"]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ...) -> None: ...

class LockRequest(_message.Message):
    __slots__ = ["file", "keys", "mode", "txn"]
    FILE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    file: FileLock
    keys: KeyLock
    mode: LockMode
    txn: int
    def __init__(self, txn: _Optional[int] = ..., mode: _Optional[_Union[LockMode, str]] = ..., keys: _Optional[_Union[KeyLock, _Mapping]] = ..., file: _Optional[_Union[FileLock, _Mapping]] = ...) -> None: ...

class LockResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class MultiGetRequest(_message.Message):
    __slots__ = ["keys", "keyspace", "snapshot", "txn"]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    keyspace: str
    snapshot: str
    txn: int
    def __init__(self, keyspace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., txn: _Optional[int] = ..., snapshot: _Optional[str] = ...) -> None: ...

class MultiGetResponse(_message.Message):
    __slots__ = ["values"]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[GetResponse]
    def __init__(self, values: _Optional[_Iterable[_Union[GetResponse, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ["delete", "delete_range", "keyspace", "put"]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    delete: bytes
    delete_range: KeyRange
    keyspace: str
    put: KeyValue
    def __init__(self, keyspace: _Optional[str] = ..., put: _Optional[_Union[KeyValue, _Mapping]] = ..., delete: _Optional[bytes] = ..., delete_range: _Optional[_Union[KeyRange, _Mapping]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ["durability", "key", "keyspace", "txn", "value"]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    durability: Durability
    key: bytes
    keyspace: str
    txn: int
    value: bytes
    def __init__(self, keyspace: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., txn: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class ScanPage(_message.Message):
    __slots__ = ["entries"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, entries: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ["keyspace", "limit", "prefix", "range", "reverse", "snapshot", "txn"]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    keyspace: str
    limit: int
    prefix: bytes
    range: KeyRange
    reverse: bool
    snapshot: str
    txn: int
    def __init__(self, keyspace: _Optional[str] = ..., prefix: _Optional[bytes] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., reverse: bool = ..., limit: _Optional[int] = ..., txn: _Optional[int] = ..., snapshot: _Optional[str] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ["age_ms", "isolation", "label", "pid", "state", "txn", "uid"]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    isolation: Isolation
    label: str
    pid: int
    state: str
    txn: int
    uid: int
    def __init__(self, txn: _Optional[int] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., uid: _Optional[int] = ..., pid: _Optional[int] = ..., label: _Optional[str] = ..., age_ms: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class ViewRequest(_message.Message):
    __slots__ = ["txn"]
    TXN_FIELD_NUMBER: _ClassVar[int]
    txn: int
    def __init__(self, txn: _Optional[int] = ...) -> None: ...

class ViewResponse(_message.Message):
    __slots__ = ["path"]
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    def __init__(self, path: _Optional[bytes] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class LockMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
