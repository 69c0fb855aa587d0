"""Operations on whole trees, by a call on the mount (docs/CALLS.md)."""

from __future__ import annotations

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
#: Says that a call follows; the kernel refuses it on a mount that is read-only.
_ANNOUNCEMENT = "system.kvfs.tree"
#: operation, flags, id, path or text, other path.
_CALL = struct.Struct("=IIQ4088s4088s")


def remove(mounted: str, path: bytes) -> Optional[int]:
    """Removes the tree at ``path`` of what is mounted at ``mounted``. Returns the number of the transaction of its own."""
    if b"\0" in path:
        raise ValueError("a path without zero bytes")
    if len(path) >= 4088:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fsdecode(path))
    call = bytearray(_CALL.pack(_REMOVE, 0, 0, path, b""))
    descriptor = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
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
