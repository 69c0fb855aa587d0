"""Which store a path means."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import stat
import struct
from typing import Optional, Tuple, Union

from ._errors import NotMounted

SOCKET_NAME = "kv.sock"
PUBLIC = "/run/kvfs"

#: What SO_PEERCRED gives: process, user, group.
_CREDENTIALS = struct.Struct("iII")

#: What the kernel shows for users that a namespace has no number for.
_UID_UNMAPPED = 65534


def socket_of(store: str) -> Tuple[str, Optional[int]]:
    """The socket of a mounted store, and the owner of its directory, whose daemon is to be behind it; that of a mount of root's
    for all users, where the store's directory is closed."""
    path = os.path.join(store, SOCKET_NAME)
    directory, public = _public_of(store)
    if not os.path.lexists(path) and os.path.lexists(public):
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or not _is_root(found.st_uid) or found.st_mode & 0o022:
            raise PermissionError(errno.EACCES, "not root's alone", directory)
        return public, found.st_uid
    return path, os.stat(store).st_uid if os.path.exists(store) else None


def open_socket_of(store: str) -> Tuple[int, Optional[int]]:
    """A descriptor (O_PATH) of the socket of a mounted store, and the owner as by :func:`socket_of`. A symbolic link in its place
    is not followed: the store's owner may have made it, and it could lead to another store that this user may use."""
    path, owner = socket_of(store)
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotMounted(f"cannot reach the daemon at {path}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (0, owner, os.geteuid()):
        os.close(descriptor)
        raise PermissionError(errno.EACCES, "no socket of a user that may serve the store", path)
    return descriptor, owner


def _public_of(store: str) -> Tuple[str, str]:
    directory = os.path.join(PUBLIC, hashlib.sha256(os.fsencode(store)).hexdigest())
    return directory, os.path.join(directory, SOCKET_NAME)


def expect_daemon_of(path: str, owner: Optional[int]) -> None:
    """Refuses the daemon behind a socket if it is of a user that may not serve the store: another one than root, this process's
    user, and ``owner``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(path)
        except OSError as error:
            raise NotMounted(f"cannot reach the daemon at {path}: {error.strerror}") from error
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(peer)[1]
    if uid not in (0, owner, os.geteuid()):
        raise PermissionError(errno.EACCES, f"of user {uid}, which may not serve the store", path)


def _is_root(uid: int) -> bool:
    """In a user namespace without root the kernel shows root, as all users that are not in it, as one number."""
    if uid != _UID_UNMAPPED:
        return uid == 0
    with open("/proc/self/uid_map", encoding="ascii") as table:
        return table.read().split() != ["0", "0", "4294967295"]


def locate(path: Union[str, "os.PathLike[str]"]) -> str:
    """The directory of the mounted store that ``path`` means: itself, or that of the mount that it is on."""
    resolved = os.path.realpath(path)
    # A store that root serves without a mount may be closed to this user.
    if os.path.lexists(os.path.join(resolved, SOCKET_NAME)) or os.path.lexists(_public_of(resolved)[1]):
        return resolved
    found = ("", "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.rstrip("\n").split(" ")
            kind, source = fields[fields.index("-") + 1 :][:2]
            if kind not in ("fuse.kvfs", "fuse.kvfs-txn"):
                continue
            directory = _unescape(fields[4])
            inside = resolved == directory or resolved.startswith(directory.rstrip("/") + "/")
            if inside and len(directory) >= len(found[0]):
                found = (directory, _unescape(source))
    if not found[1]:
        raise NotMounted(f"{os.fspath(path)} is not on a mounted kvfs store")
    return found[1]


def _unescape(field: str) -> str:
    raw = os.fsencode(field)
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), raw))
