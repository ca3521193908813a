"""The disk cache: never a wrong value, whatever happens to its files or who else uses them."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tilekern.errors import KernelOptionError
from tilekern.jit._disk_cache import (
    CACHE_DIR_VARIABLE,
    CACHE_SIZE_VARIABLE,
    DEFAULT_MAX_BYTES,
    DiskCache,
)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def entry_file(cache: DiskCache) -> Path:
    (file,) = Path(cache.info().folder).rglob("*.entry")
    return file


def test_value_comes_back(cache: DiskCache) -> None:
    assert cache.get(b"key") is None
    assert cache.put(b"key", b"value" * 1000, {"kernel": "add"})
    assert cache.get(b"key") == b"value" * 1000
    assert cache.get(b"other key") is None
    assert cache.put(b"key", b"")
    assert cache.get(b"key") == b""
    info = cache.info()
    assert (info.hits, info.misses, info.stored, info.entries) == (2, 2, 2, 1)


def test_another_instance_sees_it(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(b"key", b"value")
    assert DiskCache(tmp_path / "cache").get(b"key") == b"value"


def test_metadata_is_shown(cache: DiskCache) -> None:
    cache.put(b"a", b"1234", {"kernel": "add", "arch": "sm_90"})
    cache.put(b"b", b"12", {"kernel": "mul"})
    first = Path(cache.info().folder).rglob("*.entry")
    for file in first:
        used = 1000 if b'"add"' in file.read_bytes() else 2000
        os.utime(file, (used, used))
    latest, earlier = cache.entries()
    assert latest.metadata == {"kernel": "mul"}
    assert earlier.metadata == {"kernel": "add", "arch": "sm_90"}
    assert (latest.used, earlier.used) == (2000, 1000)
    assert earlier.size_bytes > 4


def test_clear_and_remove(cache: DiskCache) -> None:
    for number in range(5):
        cache.put(bytes([number]), b"value")
    assert cache.remove(b"\x00")
    assert not cache.remove(b"\x00")
    assert cache.get(b"\x00") is None
    assert cache.clear() == 4
    assert cache.info().entries == 0


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short header": lambda data: data[:20],
    "cut in half": lambda data: data[: len(data) // 2],
    "last byte missing": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\x00",
    "zeros": lambda data: bytes(len(data)),
    "first byte flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "value byte flipped": lambda data: data[:-3] + bytes([data[-3] ^ 0x10]) + data[-2:],
    "metadata changed": lambda data: data.replace(b'"kernel"', b'"kernal"'),
    "huge sizes": lambda data: data[:8] + b"\xff" * 12 + data[20:],
    "text": lambda data: b"not an entry at all\n" * 10,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_entry_is_a_miss_and_removed(damage: Callable[[bytes], bytes], cache: DiskCache) -> None:
    cache.put(b"key", b"value" * 100, {"kernel": "add"})
    file = entry_file(cache)
    file.write_bytes(damage(file.read_bytes()))
    cache.entries()
    assert cache.get(b"key") is None
    assert not file.exists()
    assert cache.info().damaged == 1
    assert cache.put(b"key", b"again")
    assert cache.get(b"key") == b"again"


def test_every_flipped_bit_is_noticed(cache: DiskCache) -> None:
    cache.put(b"key", b"value", {"k": 1})
    file = entry_file(cache)
    data = file.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        file.write_bytes(changed)
        assert cache.get(b"key") is None
    file.write_bytes(data)
    assert cache.get(b"key") == b"value"


def test_entry_under_a_wrong_name_is_a_miss(cache: DiskCache) -> None:
    """A copied or renamed file is intact, but it is not the value of that key."""
    cache.put(b"key", b"value")
    file = entry_file(cache)
    data = file.read_bytes()
    cache.put(b"other", b"other value")
    (other,) = (f for f in Path(cache.info().folder).rglob("*.entry") if f != file)
    other.write_bytes(data)
    assert cache.get(b"other") is None
    assert cache.get(b"key") == b"value"


def test_folder_in_place_of_an_entry(cache: DiskCache) -> None:
    cache.put(b"key", b"value")
    file = entry_file(cache)
    file.unlink()
    file.mkdir()
    assert cache.get(b"key") is None
    assert not cache.put(b"key", b"value")
    assert cache.info().failures == 2


def test_link_in_place_of_an_entry_is_not_followed(cache: DiskCache, tmp_path: Path) -> None:
    cache.put(b"key", b"value")
    file = entry_file(cache)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert cache.get(b"key") is None
    assert cache.put(b"key", b"new")
    assert cache.get(b"key") == b"new"
    assert b"value" in elsewhere.read_bytes()


def test_folder_is_private(cache: DiskCache) -> None:
    cache.put(b"key", b"value")
    root = Path(cache.info().folder)
    assert root.stat().st_mode & 0o777 == 0o700
    assert entry_file(cache).stat().st_mode & 0o777 == 0o600
    root.chmod(0o755)
    assert DiskCache(root.parent).get(b"key") == b"value"
    assert root.stat().st_mode & 0o777 == 0o700


def test_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(tmp_path).put(b"key", b"value")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    cache = DiskCache(tmp_path)
    assert cache.get(b"key") is None
    assert not cache.put(b"key", b"value")
    info = cache.info()
    assert not info.is_enabled
    assert f"belongs to user {owner}, not to this one" in info.reason


def test_linked_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "v1").symlink_to(tmp_path / "real")
    cache = DiskCache(tmp_path)
    assert not cache.put(b"key", b"value")
    assert "not a folder (symbolic links are not followed)" in cache.info().reason


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache")
    assert cache.get(b"key") is None
    assert not cache.put(b"key", b"value")
    assert "cannot be made" in cache.info().reason
    assert cache.clear() == 0
    assert cache.entries() == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_reading_goes_on_where_nothing_can_be_written(
    code: int, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(b"key", b"value")
    real_open = os.open

    def refuse_writing(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_WRONLY:
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, *rest, **more)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse_writing)
    monkeypatch.setattr(os, "utime", refuse)
    assert cache.get(b"key") == b"value"
    assert not cache.put(b"new", b"value")
    assert cache.get(b"new") is None
    assert cache.info().failures == 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_read_only_folder(cache: DiskCache) -> None:
    cache.put(b"key", b"value")
    root = Path(cache.info().folder)
    for folder in (root, entry_file(cache).parent):
        folder.chmod(0o500)
    assert cache.get(b"key") == b"value"
    assert not cache.put(b"new", b"value")
    assert not cache.put(b"key", b"value")
    for folder in (root, entry_file(cache).parent):
        folder.chmod(0o700)


def test_half_written_file_is_taken_back(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(b"key", b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not cache.put(b"key", b"new")
    assert cache.get(b"key") == b"old"
    assert [file.suffix for file in Path(cache.info().folder).rglob("*") if file.is_file()] == [".entry"]


def test_folder_deleted_while_in_use(cache: DiskCache) -> None:
    cache.put(b"key", b"value")
    root = Path(cache.info().folder)
    for path in sorted(root.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    root.parent.rmdir()
    assert cache.get(b"key") is None
    assert cache.put(b"key", b"value")
    assert cache.get(b"key") == b"value"
    assert root.stat().st_mode & 0o777 == 0o700


def test_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=10_500)
    files = {}
    for number in range(10):
        before = set(tmp_path.rglob("*.entry"))
        cache.put(bytes([number]), bytes(900))
        (files[number],) = set(tmp_path.rglob("*.entry")) - before
        os.utime(files[number], (1000 + number, 1000 + number))
    assert cache.get(b"\x00") is not None  # used now: no longer the oldest
    cache.put(b"next", bytes(900))
    cache.put(b"last", bytes(900))
    kept = [number for number, file in files.items() if file.exists()]
    assert kept[0] == 0
    assert kept[1:] == list(range(10 - len(kept) + 1, 10))
    assert cache.get(b"last") is not None
    info = cache.info()
    assert info.size_bytes <= 10_500
    assert info.evicted == 12 - info.entries > 0


def test_value_larger_than_the_cache_is_not_stored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=1000)
    cache.put(b"small", bytes(100))
    assert not cache.put(b"large", bytes(2000))
    assert cache.get(b"small") is not None


def test_abandoned_temporary_files_are_removed(cache: DiskCache) -> None:
    cache.put(b"key", b"value")
    folder = entry_file(cache).parent
    old, young = folder / ".tmp-old", folder / ".tmp-young"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    assert cache.info().entries == 1
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("value", ["0", "off", "none", "OFF"])
def test_environment_switches_it_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, value)
    cache = DiskCache()
    assert not cache.put(b"key", b"value")
    assert cache.get(b"key") is None
    info = cache.info()
    assert not info.is_enabled
    assert info.reason == f"switched off by TILEKERN_CACHE_DIR={value}"


def test_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv(CACHE_DIR_VARIABLE, raising=False)
    assert DiskCache().info().folder == str(tmp_path / "xdg" / "tilekern" / "v1")
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "mine"))
    assert DiskCache().info().folder == str(tmp_path / "mine" / "v1")
    monkeypatch.delenv(CACHE_DIR_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative_or_unset in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", relative_or_unset)
        assert DiskCache().info().folder == str(tmp_path / "home" / ".cache" / "tilekern" / "v1")


@pytest.mark.parametrize(
    ("text", "size"),
    [("", DEFAULT_MAX_BYTES), ("1000", 1000), ("5K", 5120), ("2 GiB", 2 << 30), ("10mb", 10 << 20), ("0", 0)],
)
def test_environment_gives_the_size(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, text)
    assert DiskCache("unused").max_bytes == size
    assert DiskCache("unused", max_bytes=7).max_bytes == 7


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "5 apples"])
def test_sizes_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_SIZE_VARIABLE, text)
    with pytest.raises(KernelOptionError, match=rf"TILEKERN_CACHE_SIZE is '{text}'; .* such as 2G"):
        DiskCache("unused")


def test_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0 bytes, got -5"):
        DiskCache("unused", max_bytes=-5)


def test_threads_share_an_instance(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=200_000)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for step in range(100):
            number = (step * 7 + seed) % 60
            value = bytes([number]) * 5000
            if (found := cache.get(bytes([number]))) is None:
                cache.put(bytes([number]), value)
            elif found != value:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    info = cache.info()
    assert info.damaged == info.failures == 0
    assert info.hits + info.misses == 800
    assert info.size_bytes <= 200_000


WORKER = """
import json, random, sys
from tilekern.jit._disk_cache import DiskCache

folder, seed = sys.argv[1], int(sys.argv[2])
cache = DiskCache(folder, max_bytes=300_000)
choose = random.Random(seed)
wrong = 0
for _ in range(400):
    number = choose.randrange(60)
    value = bytes([number, number ^ 0xFF]) * (2000 + 50 * number)
    found = cache.get(bytes([number]))
    if found is None or choose.random() < 0.2:
        cache.put(bytes([number]), value, {"number": number})
    elif found != value:
        wrong += 1
info = cache.info()
print(json.dumps([wrong, info.damaged, info.failures, info.hits, info.stored, info.evicted]))
"""


def test_eight_processes_share_a_folder(tmp_path: Path) -> None:
    """All read, write and evict at once in a folder that is too small for what they store."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(seed)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(8)
    ]
    results = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    for wrong, damaged, failures, hits, stored, _ in results:
        assert (wrong, damaged, failures) == (0, 0, 0)
        assert hits > 0
        assert stored > 0
    assert sum(evicted for *_, evicted in results) > 0
    cache = DiskCache(tmp_path, max_bytes=300_000)
    # A process looks again after adding a sixteenth: eight can be over by half between two looks.
    assert cache.info().size_bytes <= 1.5 * 300_000
    for number in range(60):
        found = cache.get(bytes([number]))
        assert found in (None, bytes([number, number ^ 0xFF]) * (2000 + 50 * number))
    assert cache.info().damaged == 0
