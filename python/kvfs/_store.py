"""Stores, keyspaces, transactions."""

from __future__ import annotations

import base64
import json
import math
import os
import threading
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import (
    IO,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import grpc

from . import _trees
from ._errors import Conflict, KvfsError, NotMounted, explained
from ._locate import expect_daemon_of, locate, open_socket_of
from ._proto import store_pb2 as pb
from ._proto.store_pb2_grpc import StoreStub

T = TypeVar("T")
#: Keys and values are bytes, or what has them: bytes, bytearray, memoryview, array.
Data = Union[bytes, bytearray, memoryview]
Path = Union[str, "os.PathLike[str]"]

_MESSAGE_LEN_MAX = 16 << 20
_MS_MAX = (1 << 64) - 1
#: What an import sends at a time: keys and values, and their number.
_IMPORT_BYTES = 1 << 20
_IMPORT_OPERATIONS = 1000


def _bytes(data: Data) -> bytes:
    try:
        # What bytes() takes otherwise (numbers, lists, text with an encoding) has no bytes of its own.
        return bytes(memoryview(data))
    except TypeError:
        hint = "; text has them after .encode()" if isinstance(data, str) else ""
        raise TypeError(f"keys and values are bytes, not {type(data).__name__}{hint}") from None


def _from_root(path: Path) -> bytes:
    return os.fsencode(path).lstrip(b"/")


def _text(name: str, data: bytes) -> Dict[str, str]:
    """Bytes as members of a JSON object: text, and base64 beside it where they are none."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        encoded = base64.b64encode(data).decode()
        return {name: data.decode(errors="replace"), f"{name}_base64": encoded}


def _data(entry: Mapping[str, str], name: str) -> bytes:
    encoded = entry.get(f"{name}_base64")
    return entry[name].encode() if encoded is None else base64.b64decode(encoded, validate=True)


def _range(start: Optional[Data], end: Optional[Data]) -> pb.KeyRange:
    return pb.KeyRange(
        start=b"" if start is None else _bytes(start), end=None if end is None else _bytes(end)
    )


@dataclass(frozen=True)
class KeyspaceInfo:
    """Whose a keyspace is, and what others may do (``mode``: read and write bits as of a file)."""

    name: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True)
class TransactionInfo:
    """An open transaction."""

    id: int
    isolation: str
    uid: int
    pid: int
    label: str
    age: float
    state: str


def _idle_ms(idle: Optional[float]) -> int:
    """0: as the mount says; the greatest number: never."""
    if idle is None:
        return 0
    return _MS_MAX if idle == 0 or math.isinf(idle) else max(1, round(idle * 1000))


class _Line:
    """A channel to one daemon, by a descriptor of its socket and not by a path: that may be too long for an address, and may
    lead elsewhere by now."""

    def __init__(self, store: str) -> None:
        self._pid = os.getpid()
        self._descriptor, owner = open_socket_of(store)
        socket = f"/proc/self/fd/{self._descriptor}"
        try:
            expect_daemon_of(socket, owner)
        except BaseException:
            os.close(self._descriptor)
            raise
        options = [
            ("grpc.max_receive_message_length", _MESSAGE_LEN_MAX),
            ("grpc.enable_http_proxy", 0),
            # Else it is the path of the socket, which HTTP/2 does not take for a name.
            ("grpc.default_authority", "kvfs"),
            # A connection is this store's alone: transactions may be tied to it.
            ("grpc.use_local_subchannel_pool", 1),
            # Nor does it end because no call is made for a while.
            ("grpc.client_idle_timeout_ms", (1 << 31) - 1),
        ]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options)
        self.stub = StoreStub(self._channel)

    @property
    def is_inherited(self) -> bool:
        return self._pid != os.getpid()

    def close(self) -> None:
        if self.is_inherited:
            # Its socket is the parent's: nothing may be said there.
            _inherited.append(self)
            return
        self._channel.close()
        os.close(self._descriptor)


#: Lines of parents of this process, which must not end here.
_inherited: List[_Line] = []


class _Connection:
    """A channel to the daemon."""

    def __init__(self, store: str, deadline: Optional[float]) -> None:
        self.store = store
        self.deadline = deadline
        self._lock = threading.Lock()
        self._line: Optional[_Line] = _Line(store)
        _connections.add(self)

    def call(self, method: str, request: Any, txn: int = 0) -> Any:
        while True:
            line = self._own_line()
            with explained(txn):
                try:
                    return getattr(line.stub, method)(request, timeout=self.deadline)
                except ValueError:
                    # Nothing was sent, if another thread has closed the channel meanwhile.
                    if self._line is line:
                        raise
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNAVAILABLE:
                        self._renew(line)
                    raise

    def _own_line(self) -> _Line:
        """The line of this process: a child of fork makes one, since two would mix their calls on one."""
        line = self._line
        if line is not None and line.is_inherited:
            with self._lock:
                if self._line is line:
                    self._line = _Line(self.store)
                    line.close()
                line = self._line
        if line is None:
            raise NotMounted("the store is closed here")
        return line

    def after_fork(self) -> None:
        """In the child: a thread that is not there may have had the lock."""
        self._lock = threading.Lock()

    def _renew(self, gone: "_Line") -> None:
        """The daemon has gone. Where there is another one, the next call goes to its socket."""
        with self._lock:
            if self._line is not gone:
                return
            try:
                self._line = _Line(self.store)
            except (NotMounted, OSError):
                return
        gone.close()

    def close(self) -> None:
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()


_connections: "weakref.WeakSet[_Connection]" = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        connection.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Keyspace:
    """A named ordered map of bytes to bytes, on the main line or in a transaction.

    It need not exist: it is made by the first change, and then belongs to the user that made that. That of a named
    snapshot (:meth:`Store.snapshot`) is read-only.
    """

    def __init__(
        self, connection: _Connection, name: str, txn: int, durable: bool, snapshot: str = ""
    ) -> None:
        self._connection = connection
        self._txn = txn
        self._snapshot = snapshot
        self._durability = pb.DURABLE if durable else pb.ASYNCHRONOUS
        self.name = name

    def __repr__(self) -> str:
        return f"Keyspace({self.name!r})"

    def _call(self, method: str, request: Any) -> Any:
        return self._connection.call(method, request, self._txn)

    def _check_writable(self) -> None:
        if self._snapshot:
            raise KvfsError(
                f"snapshot {self._snapshot!r} is read-only", grpc.StatusCode.FAILED_PRECONDITION
            )

    def get(self, key: Data, default: Optional[T] = None) -> Union[bytes, Optional[T]]:
        """The value of a key, or ``default``."""
        request = pb.GetRequest(
            keyspace=self.name, key=_bytes(key), txn=self._txn, snapshot=self._snapshot
        )
        answer = self._call("Get", request)
        return answer.value if answer.HasField("value") else default

    def get_many(self, keys: Iterable[Data]) -> List[Optional[bytes]]:
        """The values of several keys at one moment, in their order; ``None`` for keys that are not there."""
        request = pb.MultiGetRequest(
            keyspace=self.name,
            keys=[_bytes(key) for key in keys],
            txn=self._txn,
            snapshot=self._snapshot,
        )
        answer = self._call("MultiGet", request)
        return [value.value if value.HasField("value") else None for value in answer.values]

    def put(self, key: Data, value: Data) -> None:
        """Sets a key."""
        self._check_writable()
        self._call(
            "Put",
            pb.PutRequest(
                keyspace=self.name,
                key=_bytes(key),
                value=_bytes(value),
                txn=self._txn,
                durability=self._durability,
            ),
        )

    def delete(self, key: Data) -> bool:
        """Removes a key. Returns whether it was there."""
        self._check_writable()
        request = pb.DeleteRequest(
            keyspace=self.name, key=_bytes(key), txn=self._txn, durability=self._durability
        )
        return self._call("Delete", request).existed

    def delete_range(self, start: Optional[Data] = None, end: Optional[Data] = None) -> None:
        """Removes the keys from ``start`` up to, not including, ``end``; all without them."""
        self._check_writable()
        request = pb.DeleteRangeRequest(
            keyspace=self.name, range=_range(start, end), txn=self._txn, durability=self._durability
        )
        self._call("DeleteRange", request)

    def update(self, entries: Union[Mapping[Data, Data], Iterable[Tuple[Data, Data]]]) -> None:
        """Sets several keys, all of them or none."""
        self._check_writable()
        batch = Batch()
        for key, value in entries.items() if isinstance(entries, Mapping) else entries:
            batch.put(self.name, key, value)
        batch._apply(self._connection, self._txn, self._durability)

    def scan(
        self,
        prefix: Data = b"",
        *,
        start: Optional[Data] = None,
        end: Optional[Data] = None,
        reverse: bool = False,
        limit: Optional[int] = None,
    ) -> Iterator[Tuple[bytes, bytes]]:
        """Keys and values as of one moment, in key order or against it.

        A reader that takes longer than half a minute between two entries, or five minutes in all, gets a
        :class:`KvfsError` with the code ABORTED: scan on from behind the last key.
        """
        if limit is not None and limit <= 0:
            return
        request = pb.ScanRequest(
            keyspace=self.name,
            prefix=_bytes(prefix),
            range=_range(start, end),
            reverse=reverse,
            limit=limit or 0,
            txn=self._txn,
            snapshot=self._snapshot,
        )
        pages = self._call("Scan", request)
        try:
            with explained(self._txn):
                for page in pages:
                    for entry in page.entries:
                        yield entry.key, entry.value
        finally:
            pages.cancel()

    def export_to(self, file: IO[str], prefix: Data = b"") -> int:
        """Writes keys and values of one moment to a text file, as ``kvfs kv export``. Returns how many."""
        count = 0
        for key, value in self.scan(prefix):
            entry = {**_text("key", key), **_text("value", value)}
            file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
        return count

    def import_from(self, file: Iterable[str]) -> int:
        """Sets the keys of a text file that :meth:`export_to` or ``kvfs kv export`` has written, all or none.

        Returns how many. A failure in a transaction aborts it when a part of the keys has been set.
        """
        self._check_writable()
        if not self._txn:
            request = pb.BeginRequest(tied=True, label=f"import {self.name}")
            txn = self._connection.call("Begin", request).txn
            with Transaction(self._connection, txn, self._durability == pb.DURABLE) as inside:
                return inside[self.name].import_from(file)
        count, size, batch, is_begun = 0, 0, Batch(), False
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line)
                    key, value = _data(entry, "key"), _data(entry, "value")
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise ValueError(f"line {number} is no entry; nothing was imported") from None
                batch.put(self.name, key, value)
                count, size = count + 1, size + len(key) + len(value)
                if size >= _IMPORT_BYTES or len(batch._operations) >= _IMPORT_OPERATIONS:
                    is_begun = True
                    batch._apply(self._connection, self._txn, self._durability)
                    size, batch = 0, Batch()
            batch._apply(self._connection, self._txn, self._durability)
        except BaseException:
            if is_begun:
                # Else a commit would publish the first part.
                Transaction(self._connection, self._txn, True)._abort_quietly()
            raise
        return count

    def items(self) -> Iterator[Tuple[bytes, bytes]]:
        """Every key with its value, in order."""
        return self.scan()

    def keys(self) -> Iterator[bytes]:
        """Every key, in order."""
        return (key for key, _ in self.scan())

    def values(self) -> Iterator[bytes]:
        """Every value, in the order of the keys."""
        return (value for _, value in self.scan())

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    def __reversed__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan(reverse=True))

    def __contains__(self, key: Data) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: Data) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Data, value: Data) -> None:
        self.put(key, value)

    def __delitem__(self, key: Data) -> None:
        if not self.delete(key):
            raise KeyError(key)


class Batch:
    """Changes in any keyspaces that are made all at once: see :meth:`Store.batch`. A later one wins."""

    def __init__(self) -> None:
        self._operations: List[pb.Operation] = []

    def put(self, keyspace: str, key: Data, value: Data) -> None:
        """Sets a key."""
        put = pb.KeyValue(key=_bytes(key), value=_bytes(value))
        self._operations.append(pb.Operation(keyspace=keyspace, put=put))

    def delete(self, keyspace: str, key: Data) -> None:
        """Removes a key."""
        self._operations.append(pb.Operation(keyspace=keyspace, delete=_bytes(key)))

    def delete_range(
        self, keyspace: str, start: Optional[Data] = None, end: Optional[Data] = None
    ) -> None:
        """Removes the keys from ``start`` up to, not including, ``end``."""
        self._operations.append(pb.Operation(keyspace=keyspace, delete_range=_range(start, end)))

    def _apply(self, connection: _Connection, txn: int, durability: int) -> None:
        if self._operations:
            request = pb.ApplyRequest(operations=self._operations, txn=txn, durability=durability)
            connection.call("Apply", request, txn)


class _Keys:
    """What stores and transactions have in common."""

    def __init__(self, connection: _Connection, txn: int, durable: bool) -> None:
        self._connection = connection
        self._txn = txn
        self.durable = durable

    def keyspace(self, name: str) -> Keyspace:
        """The keyspace of this name; it need not exist yet."""
        return Keyspace(self._connection, name, self._txn, self.durable)

    def __getitem__(self, name: str) -> Keyspace:
        return self.keyspace(name)

    def apply(self, batch: Batch) -> None:
        """Makes the changes of a batch, all of them or none."""
        batch._apply(self._connection, self._txn, pb.DURABLE if self.durable else pb.ASYNCHRONOUS)


class Store(_Keys):
    """A mounted store. Use :func:`connect`."""

    def __init__(self, store: str, *, deadline: Optional[float], durable: bool, txn: int) -> None:
        super().__init__(_Connection(store, deadline), txn, durable)
        self.path = store

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and with it the transactions that were begun on it."""
        self._connection.close()

    def info(self) -> Tuple[str, str]:
        """Version of the daemon, and where the store is mounted."""
        info = self._connection.call("Info", pb.InfoRequest())
        return info.version, info.mount

    def batch(self) -> "_BatchContext":
        """``with store.batch() as batch: …`` makes all changes of the block, or none."""
        return _BatchContext(self)

    def keyspaces(self) -> List[KeyspaceInfo]:
        """The keyspaces that this user may use, ordered by name."""
        answer = self._connection.call("ListKeyspaces", pb.ListKeyspacesRequest())
        return [_keyspace_info(info) for info in answer.keyspaces]

    def create_keyspace(
        self, name: str, mode: Optional[int] = None, *, exclusive: bool = False
    ) -> KeyspaceInfo:
        """Makes a keyspace; its mode is 0600 unless it says otherwise."""
        request = pb.CreateKeyspaceRequest(name=name, mode=mode, exclusive=exclusive)
        return _keyspace_info(self._connection.call("CreateKeyspace", request))

    def chmod(self, name: str, mode: int) -> KeyspaceInfo:
        """Changes who may read and write a keyspace."""
        request = pb.ChangeKeyspaceRequest(name=name, mode=mode)
        return _keyspace_info(self._connection.call("ChangeKeyspace", request))

    def chown(self, name: str, uid: Optional[int] = None, gid: Optional[int] = None) -> KeyspaceInfo:
        """Gives a keyspace to another user (root and the store's owner may) or group."""
        request = pb.ChangeKeyspaceRequest(name=name, uid=uid, gid=gid)
        return _keyspace_info(self._connection.call("ChangeKeyspace", request))

    def drop_keyspace(self, name: str) -> None:
        """Removes a keyspace with all its keys, outside of any transaction. Named snapshots keep both."""
        self._connection.call("DropKeyspace", pb.DropKeyspaceRequest(name=name))

    def _mounted(self) -> str:
        """Where the files are; those of the transaction, if this is in one."""
        mount = self.info()[1]
        if not mount:
            raise NotMounted("the store is served without a mount, so there are no files here")
        if not self._txn or _trees.is_view(mount):
            return mount
        # Of a transaction that covers no mount for this process.
        return self.join(self._txn).path()

    def remove_tree(self, path: Path) -> Optional[int]:
        """Removes what is at ``path``, from the root of the store, with all that is below: all of it or nothing, at once for root.

        Returns the number of the transaction in which it was done, for ``kvfs txn undo``; ``None`` in one that was there. The store
        must be mounted. Errors are those of the system (``FileNotFoundError``, ``PermissionError``, …), with what was in the way.
        """
        return _trees.remove(self._mounted(), _from_root(path))

    def clone_tree(self, source: Path, target: Path) -> Optional[int]:
        """Makes what is at ``source`` a second time at ``target``, with all that is below, and without copying content.

        All of it or nothing; paths, the number that is returned, and errors as for :meth:`remove_tree`.
        """
        return _trees.clone(self._mounted(), _from_root(source), _from_root(target))

    def snapshot(self, name: str) -> "Snapshot":
        """The keys of a named snapshot, read-only; its files are in ``.kvfs/snapshots/NAME``."""
        return Snapshot(self._connection, name)

    def transactions(self) -> List[TransactionInfo]:
        """This user's open transactions."""
        answer = self._connection.call("ListTransactions", pb.ListTransactionsRequest())
        return [
            TransactionInfo(
                info.txn,
                "serializable" if info.isolation == pb.SERIALIZABLE else "snapshot",
                info.uid,
                info.pid,
                info.label,
                info.age_ms / 1000,
                info.state,
            )
            for info in answer.transactions
        ]

    def transaction(
        self,
        *,
        isolation: str = "snapshot",
        nice: int = 0,
        timeout: Optional[float] = None,
        idle: Optional[float] = None,
        durable: bool = True,
        tied: bool = True,
        label: str = "python",
    ) -> "Transaction":
        """Begins a transaction over keys and files.

        ``isolation``: ``"snapshot"`` or ``"serializable"``. ``nice``: of two in each other's way the one with the
        greater number gives way. ``timeout``: it is given up when it takes longer (seconds). ``idle``: it is
        given up when it goes without an operation for longer (seconds; 0 or ``math.inf``: never; without it as the mount says).
        ``durable``: the
        commit survives a power cut when it returns. ``tied``: it ends with this connection, however the process
        ends; else it stays until it is committed or aborted.
        """
        if self._txn:
            raise KvfsError(f"this is in transaction {self._txn} already; there are none inside of others")
        levels = {"snapshot": pb.SNAPSHOT, "serializable": pb.SERIALIZABLE}
        if isolation not in levels:
            raise ValueError(f"isolation is 'snapshot' or 'serializable', not {isolation!r}")
        request = pb.BeginRequest(
            isolation=levels[isolation],
            nice=nice,
            timeout_ms=0 if timeout is None else max(1, round(timeout * 1000)),
            tied=tied,
            label=label,
            idle_ms_max=_idle_ms(idle),
        )
        txn = self._connection.call("Begin", request).txn
        return Transaction(self._connection, txn, durable)

    def join(self, txn: int, *, durable: bool = True) -> "Transaction":
        """A transaction of this user that is open already, by its number."""
        return Transaction(self._connection, txn, durable)

    def run(self, function: Callable[["Transaction"], T], retries: int = 3, **begin: Any) -> T:
        """Calls ``function`` with a transaction and commits it; after a conflict again, at most ``retries`` times.

        Further arguments are those of :meth:`transaction`. Returns what ``function`` returns.
        """
        while True:
            try:
                with self.transaction(**begin) as txn:
                    result = function(txn)
                return result
            except Conflict:
                if retries <= 0:
                    raise
                retries -= 1


class Snapshot:
    """The keys of a named snapshot: ``store.snapshot("monday")["tags"][b"song"]``. Nothing can be changed."""

    def __init__(self, connection: _Connection, name: str) -> None:
        self._connection = connection
        self.name = name

    def keyspace(self, name: str) -> Keyspace:
        """The keyspace of this name; one that was not there holds nothing."""
        return Keyspace(self._connection, name, 0, True, self.name)

    def __getitem__(self, name: str) -> Keyspace:
        return self.keyspace(name)

    def keyspaces(self) -> List[KeyspaceInfo]:
        """The keyspaces of then that this user may use, ordered by name."""
        answer = self._connection.call("ListKeyspaces", pb.ListKeyspacesRequest(snapshot=self.name))
        return [_keyspace_info(info) for info in answer.keyspaces]


class Transaction(_Keys):
    """A transaction over keys and files: ``txn["tags"][b"song"] = b"…"``, ``open(txn.path("song.mp3"), "wb")``.

    As a context manager it commits at the end of the block, and aborts when an exception leaves it.
    """

    def __init__(self, connection: _Connection, txn: int, durable: bool) -> None:
        super().__init__(connection, txn, durable)
        self._root: Optional[str] = None
        self._ended = False
        self._pid = os.getpid()

    @property
    def id(self) -> int:
        """Its number, for ``kvfs txn join`` and :meth:`Store.join`."""
        return self._txn

    def path(self, path: Path = "") -> str:
        """Where the file ``path`` (from the root of the store) is seen in the transaction.

        Close such files before the commit.
        """
        if self._root is None:
            view = self._connection.call("View", pb.ViewRequest(txn=self._txn), self._txn)
            self._root = os.fsdecode(view.path)
        return os.path.join(self._root, os.fspath(path).lstrip("/"))

    def remove_tree(self, path: Path) -> None:
        """As :meth:`Store.remove_tree`, as a part of the transaction."""
        _trees.remove(self.path(), _from_root(path))

    def clone_tree(self, source: Path, target: Path) -> None:
        """As :meth:`Store.clone_tree`, as a part of the transaction."""
        _trees.clone(self.path(), _from_root(source), _from_root(target))

    def environment(self) -> Mapping[str, str]:
        """The environment of commands that are to belong to the transaction, such as ``kvfs kv``."""
        return {**os.environ, "KVFS_TXN": str(self._txn), "KVFS_TXN_STORE": self._connection.store}

    def lock_keys(
        self,
        keyspace: str,
        prefix: Data = b"",
        start: Optional[Data] = None,
        end: Optional[Data] = None,
        exclusive: bool = False,
    ) -> None:
        """Locks keys until the transaction ends, those that don't exist included: with a prefix, in a range, or all.

        Waits for others. :class:`Conflict`: another changed one after the transaction began (unless it is
        serializable), so lock early. The keyspace must be there: else a :class:`KvfsError` of NOT_FOUND.
        """
        keys = pb.KeyLock(
            keyspace=keyspace,
            prefix=_bytes(prefix),
            range=pb.KeyRange(
                start=b"" if start is None else _bytes(start),
                end=None if end is None else _bytes(end),
            ),
        )
        self._lock(exclusive, keys=keys)

    def lock_file(self, path: Path, offset: int = 0, length: int = 0, exclusive: bool = False) -> None:
        """Locks a part of a file (``length`` 0: to the end, and what is appended), or the names in a directory.

        ``path`` is from the root of the store. Otherwise as :meth:`lock_keys`.
        """
        self._lock(exclusive, file=pb.FileLock(path=os.fsencode(path), offset=offset, length=length))

    def _lock(self, exclusive: bool, **what: Any) -> None:
        mode = pb.LOCK_EXCLUSIVE if exclusive else pb.LOCK_SHARED
        self._connection.call("Lock", pb.LockRequest(txn=self._txn, mode=mode, **what), self._txn)

    def commit(self) -> None:
        """Makes everything visible at once. :class:`Conflict`: nothing of it happened."""
        durability = pb.DURABLE if self.durable else pb.ASYNCHRONOUS
        try:
            self._connection.call("Commit", pb.CommitRequest(txn=self._txn, durability=durability), self._txn)
        except Conflict:
            self._ended = True
            raise
        self._ended = True

    def abort(self) -> None:
        """Drops it."""
        self._ended = True
        self._connection.call("Abort", pb.AbortRequest(txn=self._txn), self._txn)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        # A child of fork that leaves the block leaves the end to its parent.
        if self._ended or self._pid != os.getpid():
            return
        if kind is None:
            try:
                self.commit()
                return
            finally:
                if not self._ended:
                    self._abort_quietly()
        doomed = self._abort_quietly()
        # What fails in a transaction that has met another one, a write to a file for instance, has met a conflict.
        if doomed and isinstance(error, Exception) and not isinstance(error, Conflict):
            raise Conflict(pb.Conflict(message=doomed, txn=self._txn)) from error

    def _abort_quietly(self) -> str:
        """Why it could not have been committed any more, if so."""
        self._ended = True
        try:
            return self._connection.call("Abort", pb.AbortRequest(txn=self._txn), self._txn).doomed
        except KvfsError:
            return ""  # It has ended by itself; what is under way says why.


class _BatchContext:
    def __init__(self, keys: _Keys) -> None:
        self._keys = keys
        self._batch = Batch()

    def __enter__(self) -> Batch:
        return self._batch

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        if kind is None:
            self._keys.apply(self._batch)


def _keyspace_info(info: pb.KeyspaceInfo) -> KeyspaceInfo:
    return KeyspaceInfo(info.name, info.uid, info.gid, info.mode)


def connect(path: Path = ".", *, deadline: Optional[float] = None, durable: bool = True) -> Store:
    """Connects to the mounted store that ``path`` means: its directory, or anything on its mount.

    ``deadline``: longest time of each call (seconds). ``durable``: changes outside of transactions survive a power
    cut when they return; else within the commit interval. Inside of ``kvfs txn run`` and ``kvfs txn join`` calls
    belong to that transaction.
    """
    store = locate(path)
    txn = 0
    if os.environ.get("KVFS_TXN") and os.environ.get("KVFS_TXN_STORE", store) == store:
        txn = int(os.environ["KVFS_TXN"])
    connected = Store(store, deadline=deadline, durable=durable, txn=txn)
    try:
        connected.info()
    except KvfsError as error:
        connected.close()
        if isinstance(error, NotMounted):
            raise NotMounted(f"{os.fspath(path)}: {error}", error.code) from None
        raise
    return connected
