"""Operations on whole trees, by a call on the mount (docs/CALLS.md)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from typing import Optional

from ._errors import Conflict
from ._proto import store_pb2 as pb

#: ``KVFS_IOC_TREE``: _IOWR('k', 0x65, struct kvfs_tree_call).
_IOC_TREE = 0xE0006B65
_REMOVE = 1
_CLONE = 2
#: Says that a call follows; the kernel refuses it on a mount that is read-only.
_ANNOUNCEMENT = "system.kvfs.tree"
#: operation, flags, id, path or text, other path.
_CALL = struct.Struct("=IIQ4088s4088s")


def remove(mounted: str, path: bytes) -> Optional[int]:
    """Removes the tree at ``path`` of what is mounted at ``mounted``. Returns the number of the transaction of its own."""
    return _change(mounted, _REMOVE, path, b"")


def clone(mounted: str, source: bytes, target: bytes) -> Optional[int]:
    """Clones the tree at ``source`` to ``target``, both of what is mounted at ``mounted``. Returns as :func:`remove` does."""
    return _change(mounted, _CLONE, source, target)


def is_view(mounted: str) -> bool:
    """Whether what is mounted at ``mounted`` is the view of a transaction, as in ``kvfs txn run``."""
    number = os.stat(mounted).st_dev
    device = f"{os.major(number)}:{os.minor(number)}".encode()
    with open("/proc/self/mountinfo", "rb") as mounts:
        return any(line.split()[2] == device and b" - fuse.kvfs-txn " in line for line in mounts)


def _change(mounted: str, operation: int, path: bytes, other: bytes) -> Optional[int]:
    for given in (path, other):
        if b"\0" in given:
            raise ValueError("a path without zero bytes")
        if len(given) >= 4088:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(given))
    call = bytearray(_CALL.pack(operation, 0, 0, path, other))
    descriptor = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if operation == _CLONE and ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            # What is being written comes along.
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(path))
        os.setxattr(descriptor, _ANNOUNCEMENT, b"")
        fcntl.ioctl(descriptor, _IOC_TREE, call, True)
    except OSError as error:
        text = os.fsdecode(_CALL.unpack(call)[3].split(b"\0")[0])
        if error.errno == errno.ECANCELED:
            raise Conflict(pb.Conflict(message=text)) from None
        # What did not come so far has the path there.
        why = os.strerror(error.errno or 0) if text == os.fsdecode(path) else text
        raise OSError(error.errno, why, os.fsdecode(path)) from None
    finally:
        os.close(descriptor)
    return _CALL.unpack(call)[2] or None
