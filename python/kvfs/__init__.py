"""Keys, files and transactions of a mounted kvfs store.

``connect`` gives a :class:`Store`; ``store["name"]`` a :class:`Keyspace`, which works much like a dictionary of
bytes in key order; ``store.transaction()`` a :class:`Transaction` over keys and files.

A store and what comes from it may be used by any number of threads.
"""

from ._errors import Conflict, KvfsError, NotMounted, TransactionEnded
from ._locate import locate
from ._store import (
    Batch,
    Keyspace,
    KeyspaceInfo,
    Snapshot,
    Store,
    Transaction,
    TransactionInfo,
    connect,
)

__all__ = [
    "Batch",
    "Conflict",
    "Keyspace",
    "KeyspaceInfo",
    "KvfsError",
    "NotMounted",
    "Snapshot",
    "Store",
    "Transaction",
    "TransactionEnded",
    "TransactionInfo",
    "connect",
    "locate",
]
