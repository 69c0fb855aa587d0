"""Errors, and how a gRPC status becomes one."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional

import grpc

from ._proto import store_pb2 as pb

_CONFLICT_TRAILER = "kvfs-conflict-bin"
_ENDED_TRAILER = "kvfs-ended-transaction"


class KvfsError(Exception):
    """The daemon refused a call. ``code`` is the ``grpc.StatusCode``, if there is one."""

    def __init__(self, message: str, code: Optional[grpc.StatusCode] = None) -> None:
        super().__init__(message)
        self.code = code


class NotMounted(KvfsError):
    """There is no mounted store, or it was unmounted."""


class TransactionEnded(KvfsError):
    """The transaction was committed or aborted before, or the daemon has ended it, and the message says why."""


class Conflict(KvfsError):
    """The transaction met another one; nothing of it happened. Run it again (:meth:`Store.run` does).

    ``other`` is the other party, ``place`` the path or key it was about (with ``keyspace`` and ``key`` where it
    was a key), each as far as it is known.
    """

    def __init__(self, conflict: pb.Conflict) -> None:
        super().__init__(conflict.message, grpc.StatusCode.ABORTED)
        self.txn: int = conflict.txn
        self.other: str = conflict.other
        self.place: str = conflict.place
        self.keyspace: str = conflict.keyspace
        self.key: bytes = conflict.key


def _explained(error: grpc.RpcError, txn: int) -> KvfsError:
    code, message = error.code(), error.details() or str(error)
    if code == grpc.StatusCode.ABORTED:
        for name, value in error.trailing_metadata() or ():
            if name == _CONFLICT_TRAILER:
                return Conflict(pb.Conflict.FromString(value))
    if code == grpc.StatusCode.UNAVAILABLE:
        return NotMounted(message, code)
    if txn and any(name == _ENDED_TRAILER for name, _ in error.trailing_metadata() or ()):
        return TransactionEnded(message, code)
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return _Denied(message, code)
    return KvfsError(message, code)


class _Denied(KvfsError, PermissionError):
    """So that ``except PermissionError`` works, too."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        KvfsError.__init__(self, message, code)

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def explained(txn: int = 0) -> Iterator[None]:
    """Turns what gRPC raises into errors of this package."""
    try:
        yield
    except grpc.RpcError as error:
        raise _explained(error, txn) from None
