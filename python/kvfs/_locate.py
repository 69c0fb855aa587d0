"""Which store a path means."""

from __future__ import annotations

import os
import re
from typing import Union

from ._errors import NotMounted

SOCKET_NAME = "kv.sock"


def locate(path: Union[str, "os.PathLike[str]"]) -> str:
    """The directory of the mounted store that ``path`` means: itself, or that of the mount that it is on."""
    resolved = os.path.realpath(path)
    if os.path.lexists(os.path.join(resolved, SOCKET_NAME)):
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
