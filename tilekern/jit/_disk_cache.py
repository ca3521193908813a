"""Compiled kernels kept on disk between processes.

One file per value, named by the SHA-256 of its key, so equal keys meet and different ones never do:

    <folder>/v1/3f/3fa9...c2.entry     magic, sizes, checksum, metadata (JSON), value

The cache may lose a value, never give a wrong one. The checksum covers the entry's own name, the
metadata and the value, so truncated, scrambled and misplaced files are misses, and are removed. Files are
written beside their place and moved into it in one step, so several processes can share a folder without
locks: readers see an old file, a new one or none. What cannot be written (read-only folder, full disk) is
not kept; what cannot be read is a miss. No error of the file system comes out of `get` or `put`.

Values are code that will run, so the folder `v1` must be a real folder of this user that nobody else can
enter (mode 0700, which is set); otherwise the cache is off, and `info()` says why. A file of another user in it
is passed over.

When the folder outgrows its limit, the entries used longest ago go, until a fifth of it is free. "Used" is
the file's modification time, which `get` renews. Two processes that evict at once pick the same files.
A deletion cannot hurt a reader: the file it has open stays readable.

Rejected: an index file (needs locks, and is one thing to damage); pickled values (would run what they
hold); `fsync` (a crash costs an entry, which the checksum notices).
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from ..errors import KernelOptionError

if TYPE_CHECKING:
    from ._disk_cache_info import CacheEntry, CacheInfo, Json

__all__ = [
    "CACHE_DIR_VARIABLE",
    "CACHE_SIZE_VARIABLE",
    "DEFAULT_MAX_BYTES",
    "DiskCache",
    "name_of",
]

CACHE_DIR_VARIABLE = "TILEKERN_CACHE_DIR"
CACHE_SIZE_VARIABLE = "TILEKERN_CACHE_SIZE"
DEFAULT_MAX_BYTES = 2 << 30

_OFF = frozenset({"0", "off", "none"})
_MAGIC = b"TKCACHE1"
_HEADER_BYTES = len(_MAGIC) + 4 + 8 + 32
_MAX_METADATA_BYTES = 1 << 20
_SUFFIX = ".entry"
_TEMPORARY = ".tmp-"
_TEMPORARY_AGE_S = 3600.0
_FILL_AFTER_EVICTION = 0.8
_SCANS_PER_FILL = 16


class _File(NamedTuple):
    used: float
    size_bytes: int
    path: str


class DiskCache:
    """A content-addressed store of bytes, bounded in size; see the module's docstring. Thread-safe.

    Args:
        folder: where to keep it. If not given, `TILEKERN_CACHE_DIR` says (0, off or none: nowhere), and
            without that it is `tilekern` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).
        max_bytes: size it is kept under. If not given, `TILEKERN_CACHE_SIZE` says ("500M", "2GiB",
            "1000000"), and without that it is 2 GiB.
    Raises:
        KernelOptionError: `TILEKERN_CACHE_SIZE` is no size. ValueError: nor is `max_bytes`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, max_bytes: int | None = None) -> None:
        self.max_bytes = _size_from_environment() if max_bytes is None else max_bytes
        if self.max_bytes < 0:
            raise ValueError(f"a cache's size is at least 0 bytes, got {max_bytes}")
        self._lock = threading.Lock()
        self._base, self._reason = _base_folder(folder)
        self._root: Path | None = None
        self._size_bytes: int | None = None
        """What the last scan found; None before the first."""
        self._added_bytes = 0
        """What this process stored since."""
        self._counts = dict.fromkeys(("hits", "misses", "stored", "damaged", "evicted", "failures"), 0)

    def get(self, key: bytes) -> bytes | None:
        """The value stored under `key`, or None; reading it counts as use."""
        return self.get_named(name_of(key))

    def get_named(self, name: str) -> bytes | None:
        """The value of the entry with that name, which `name_of` gives for its key."""
        root = self._open()
        if root is None or not _is_name(name):
            self._count("misses")
            return None
        path = _place(root, name)
        try:
            data = _read_own(path)
        except FileNotFoundError:
            self._count("misses")
            return None
        except OSError:
            self._count("misses", "failures")
            return None
        value = _unpack(name, data)
        if value is None:
            self._count("misses", "damaged")
            _remove(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a read-only folder cannot remember the use
        self._count("hits")
        return value

    def put(self, key: bytes, value: bytes, metadata: Mapping[str, Json] | None = None) -> bool:
        """Store `value` under `key`; whether it was. `metadata` is for people: shown, never interpreted."""
        name = name_of(key)
        data = _pack(name, value, dict(metadata or {}))
        root = self._open()
        if root is None or len(data) > self.max_bytes:
            return False
        if not self._write(_place(root, name), data):
            self._count("failures")
            return False
        self._count("stored")
        self._grow(root, len(data))
        return True

    def remove(self, key: bytes) -> bool:
        """Forget the value under `key`; whether there was one."""
        return self.remove_named(name_of(key))

    def remove_named(self, name: str) -> bool:
        """Forget the entry with that name, such as one the driver refused; whether there was one."""
        root = self._open()
        return root is not None and _remove(_place(root, name))

    def entries(self) -> list[CacheEntry]:
        """All readable entries, the last used first. Values are not read."""
        from ._disk_cache_info import CacheEntry

        root = self._open()
        found = []
        for file in _files(root) if root else ():
            metadata = _read_metadata(file.path)
            if metadata is not None:
                found.append(CacheEntry(Path(file.path).stem, metadata, file.size_bytes, file.used))
        return sorted(found, key=lambda entry: entry.used, reverse=True)

    def info(self) -> CacheInfo:
        """Where it is, how full, and this process's counts."""
        from ._disk_cache_info import CacheInfo

        root = self._open()
        files = list(_files(root)) if root else []
        with self._lock:
            return CacheInfo(
                folder=str(root or self._base or ""),
                is_enabled=root is not None,
                reason=self._reason,
                entries=len(files),
                size_bytes=sum(file.size_bytes for file in files),
                max_bytes=self.max_bytes,
                **self._counts,
            )

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        root = self._open()
        removed = sum(_remove(file.path) for file in _files(root)) if root else 0
        with self._lock:
            self._size_bytes = None
        return removed

    def _open(self) -> Path | None:
        """The folder of entries, made and checked; None if it cannot be used."""
        if self._base is None:
            return None
        with self._lock:
            if self._root is None:
                root = self._base / "v1"
                self._reason = _make_private(root)
                self._root = None if self._reason else root
            return self._root

    def _write(self, path: str, data: bytes) -> bool:
        """Put `data` in place in one step. The folder may have been deleted meanwhile: made again once."""
        for _ in range(2):
            try:
                return _write_beside(path, data)
            except FileNotFoundError:
                with self._lock:
                    self._root = None
                if self._open() is None:
                    return False
            except OSError:
                return False
        return False

    def _grow(self, root: Path, added_bytes: int) -> None:
        """Count what was added, and evict when it is too much."""
        with self._lock:
            self._added_bytes += added_bytes
            # Others add too: look again long before this process alone could have filled the folder.
            if (
                self._size_bytes is not None
                and self._added_bytes <= self.max_bytes // _SCANS_PER_FILL
                and self._size_bytes + self._added_bytes <= self.max_bytes
            ):
                return
            self._added_bytes = 0
        files = sorted(_files(root))
        total = sum(file.size_bytes for file in files)
        if total > self.max_bytes:
            wanted = int(self.max_bytes * _FILL_AFTER_EVICTION)
            for file in files:
                # Another process may have removed it already: gone is gone, the bytes count all the same.
                if total <= wanted:
                    break
                if _remove(file.path):
                    self._count("evicted")
                total -= file.size_bytes
        with self._lock:
            self._size_bytes = total

    def _count(self, *names: str) -> None:
        with self._lock:
            for name in names:
                self._counts[name] += 1


def _base_folder(folder: str | os.PathLike[str] | None) -> tuple[Path | None, str]:
    if folder is not None:
        return Path(folder), ""
    named = os.environ.get(CACHE_DIR_VARIABLE, "")
    if named.lower() in _OFF:
        return None, f"switched off by {CACHE_DIR_VARIABLE}={named}"
    if named:
        return Path(named).expanduser(), ""
    shared = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG specification: a relative path is invalid and to be ignored.
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    except RuntimeError:
        return None, f"no home folder to keep it in; set {CACHE_DIR_VARIABLE}"
    return base / "tilekern", ""


def _size_from_environment() -> int:
    import re

    text = os.environ.get(CACHE_SIZE_VARIABLE, "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:I?B)?", text.upper())
    if match is None:
        raise KernelOptionError(
            f"{CACHE_SIZE_VARIABLE} is {text!r}; write a number of bytes, or one with K, M, G or T, such as 2G"
        )
    return int(match[1]) << (10 * " KMGT".index(match[2] or " "))


def _make_private(root: Path) -> str:
    """Make `root` a folder only this user can enter; why it is not one, or ''."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        about = os.lstat(root)
    except OSError as error:
        return f"{root} cannot be made: {error}"
    if not stat.S_ISDIR(about.st_mode):
        return f"{root} is not a folder (symbolic links are not followed)"
    if about.st_uid != _user():
        return f"{root} belongs to user {about.st_uid}, not to this one ({_user()})"
    if about.st_mode & 0o077:
        try:
            root.chmod(0o700)
        except OSError as error:
            return f"{root} can be entered by other users, and that cannot be changed: {error}"
    return ""


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def name_of(key: bytes) -> str:
    """The name of the entry with a key."""
    import hashlib

    return hashlib.sha256(key).hexdigest()


def _is_name(name: object) -> bool:
    """Whether `name_of` could have given it: names are read from other entries too, and become paths."""
    return isinstance(name, str) and len(name) == 64 and not name.strip("0123456789abcdef")


def _place(root: Path, name: str) -> str:
    return os.path.join(root, name[:2], name + _SUFFIX)


def _checksum(name: str, metadata: bytes, value: bytes) -> bytes:
    import hashlib

    total = hashlib.sha256(name.encode())
    total.update(len(metadata).to_bytes(8, "little"))
    total.update(metadata)
    total.update(value)
    return total.digest()


def _pack(name: str, value: bytes, metadata: dict[str, Json]) -> bytes:
    import json

    text = json.dumps(metadata).encode()
    if len(text) > _MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(text)} bytes; at most {_MAX_METADATA_BYTES} are kept")
    sizes = len(text).to_bytes(4, "little") + len(value).to_bytes(8, "little")
    return b"".join((_MAGIC, sizes, _checksum(name, text, value), text, value))


def _unpack(name: str, data: bytes) -> bytes | None:
    """The value of an entry, or None if the file is not exactly what was stored under `name`."""
    if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        return None
    metadata_bytes, value_bytes = _sizes(data)
    if len(data) != _HEADER_BYTES + metadata_bytes + value_bytes:
        return None
    checksum = data[len(_MAGIC) + 12 : _HEADER_BYTES]
    metadata = data[_HEADER_BYTES : _HEADER_BYTES + metadata_bytes]
    value = data[_HEADER_BYTES + metadata_bytes :]
    return value if _checksum(name, metadata, value) == checksum else None


def _read_own(path: str) -> bytes:
    """The file's bytes, if it is a regular file of this user, and as long as its header says."""
    with _open_own(path) as file:
        head = file.read(_HEADER_BYTES)
        metadata_bytes, value_bytes = _sizes(head)
        rest = metadata_bytes + value_bytes
        if os.fstat(file.fileno()).st_size != _HEADER_BYTES + rest:
            return head  # damaged: what it holds is not worth reading
        return head + file.read(rest)


def _open_own(path: str) -> IO[bytes]:
    """Open a regular file of this user; nothing that is opened here waits (a pipe would, for a writer).

    Raises:
        OSError: it is something else.
    """
    wanted = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK")
    handle = os.open(path, sum((getattr(os, name, 0) for name in wanted), os.O_RDONLY))
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != _user():
            raise PermissionError(f"{path} is not a file of this user")
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _sizes(head: bytes) -> tuple[int, int]:
    """Bytes of metadata and of value, as a header says."""
    at = len(_MAGIC)
    return int.from_bytes(head[at : at + 4], "little"), int.from_bytes(head[at + 4 : at + 12], "little")


def _read_metadata(path: str) -> dict[str, Json] | None:
    import json

    try:
        with _open_own(path) as file:
            head = file.read(_HEADER_BYTES)
            if len(head) < _HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
                return None
            found = json.loads(file.read(min(_sizes(head)[0], _MAX_METADATA_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _write_beside(path: str, data: bytes) -> bool:
    """Write a temporary file in the same folder and move it to `path`."""
    folder, name = os.path.split(path)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    temporary = os.path.join(folder, f"{_TEMPORARY}{name[:16]}-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(temporary, flags, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    return True


def _files(root: Path) -> Iterator[_File]:
    """Entries under `root`. Temporary files that were left behind are removed on the way."""
    try:
        folders = [entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if (file := _file(entry)) is not None:
                        yield file
        except OSError:
            continue


def _file(entry: os.DirEntry[str]) -> _File | None:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None  # removed meanwhile
    if entry.name.endswith(_SUFFIX) and stat.S_ISREG(about.st_mode):
        return _File(about.st_mtime, about.st_size, entry.path)
    if entry.name.startswith(_TEMPORARY) and about.st_mtime < time.time() - _TEMPORARY_AGE_S:
        _remove(entry.path)
    return None


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
