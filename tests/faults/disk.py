"""A disk that loses what was not flushed: every change below a folder is recorded, and any moment of it made again.

`disk.c` is preloaded into a process and writes down each write, flush, rename and so on below one folder, those of
SQLite included. `Record.image` makes a folder as a power cut could leave it at any moment of that record: a file holds
what was flushed of it, and of what came later nothing, all, or some writes and not others; a name is there once its
folder was flushed, and of later changes of names in that folder none, all, or the first few. (POSIX promises no more.)
The same library fills the disk up, or makes it read-only, whenever the test says so (`Room`).
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

__all__ = ["READ_ONLY", "VARIANTS", "WHOLE", "Record", "Room", "faulty", "library"]

VARIANTS = ("none", "all", "some")
"""What is left of that which nobody had flushed."""
_HEADER = struct.Struct("<BQQII")
_MEMORY = ("-shm",)  # SQLite's index of its write-ahead log: shared memory with a name, made anew at each opening


@functools.cache
def library() -> Path:
    """The preloaded library, compiled once; the test is skipped where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc) to make the faulty disk with")
    path = Path(tempfile.mkdtemp(prefix="faulty-disk-")) / "disk.so"
    source = Path(__file__).with_name("disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-lpthread"], check=True)
    return path


class Room:
    """How many bytes may still be written to a faulty disk, for the test to say while a process works there.

    Args:
        path: a file of eight bytes, not on that disk.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("<q", -1))
        self.path = path

    @property
    def left(self) -> int:
        """Bytes; below 0 without a limit."""
        return int(struct.unpack("<q", self.path.read_bytes())[0])

    def set(self, left: int) -> None:
        """So many bytes from now on; `WHOLE` for any number, `READ_ONLY` for none and no change either."""
        with self.path.open("r+b") as file:
            file.write(struct.pack("<q", left))


WHOLE, READ_ONLY = -1, -2


def faulty(root: Path, *, log: Path | None = None, room: Room | None = None) -> dict[str, str]:
    """Environment of a process whose disk below `root` is recorded, or has as much room as the test says."""
    wanted = {
        "LD_PRELOAD": library(),
        "FAULTY_DISK": root.resolve(),
        "FAULTY_LOG": log,
        "FAULTY_LEFT": room.path if room else None,
    }
    return {name: str(value) for name, value in wanted.items() if value is not None}


@dataclass
class _File:
    """A file as it is, and as the disk has it."""

    data: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (place, data), or (size, None)
    always: bool = False  # flushed by itself

    def apply(self, place: int, data: bytes | None) -> None:
        self.pending.append((place, data))
        _apply(self.data, place, data)

    def flush(self) -> None:
        self.flushed, self.pending = bytes(self.data), []

    def after(self, variant: str, rng: random.Random) -> bytes:
        if variant == "all" or self.always:
            return bytes(self.data)
        left = bytearray(self.flushed)
        if variant == "some":
            for place, data in self.pending:
                if rng.random() < 0.5:
                    _apply(left, place, data)
        return bytes(left)


def _apply(content: bytearray, place: int, data: bytes | None) -> None:
    end = place if data is None else place + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[place:]
    else:
        content[place:end] = data


class Record:
    """What a process did to a folder.

    Args:
        root: the folder.
        log: what `disk.c` wrote.
        before: a copy of the folder before it began; blank where it was empty. All of it had been flushed.
        elsewhere: a folder in it that stands for another machine, which keeps all that it is told.
    """

    def __init__(self, root: Path, log: Path, before: Path | None = None, elsewhere: str = "") -> None:
        self.root, self.before = str(root.resolve()), before
        self.elsewhere = f"{self.root}/{elsewhere}" if elsewhere else ""
        self.steps: list[tuple[str, int, int, str, bytes]] = []
        self.ends: list[int] = []
        data, at = log.read_bytes(), 0
        while at < len(data):
            op, inode, place, first, second = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name, rest = data[at : at + first].decode(), data[at + first : at + first + second]
            at += first + second
            self.steps.append((chr(op), inode, place, name, rest))
            self.ends.append(at)

    def step_at(self, size: int) -> int:
        """How many steps had been taken when the log was `size` bytes long."""
        return sum(end <= size for end in self.ends)

    def moments(self, count: int, rng: random.Random) -> Iterator[tuple[int, str]]:
        """So many different moments and variants, spread over the record."""
        every = [(step, variant) for step in range(1, len(self.steps) + 1) for variant in VARIANTS]
        rng.shuffle(every)
        yield from every[:count]

    def image(self, steps: int, variant: str, out: Path, rng: random.Random) -> None:
        """Write the folder as it may be after a power cut behind the first `steps` steps."""
        files: dict[int, _File] = {}
        names, durable = self._begun(files)
        known: dict[int, int] = {}  # inode, which a later file may have again: the file's own number
        pending: dict[str, list[tuple[str, int | None]]] = {}  # folder: names given (to a file) or taken, in order

        def change(name: str, to: int | None) -> None:
            _rename(names, name, to)
            if self.elsewhere and name.startswith(self.elsewhere):
                _rename(durable, name, to)
            else:
                pending.setdefault(os.path.dirname(name), []).append((name, to))

        for op, inode, place, name, rest in self.steps[:steps]:
            other = rest.decode() if op in "rl" else ""
            if op == "c":
                known[inode] = len(files)
                kept = bool(self.elsewhere) and name.startswith(f"{self.elsewhere}/")
                files[known[inode]] = _File(always=kept)
                change(name, known[inode])
            elif op == "o":
                known[inode] = names[name]
            elif op == "w":
                files[known[inode]].apply(place, rest)
            elif op == "t":
                files[known[inode]].apply(place, None)
            elif op == "s":
                files[known[inode]].flush()
            elif op == "d":
                for what, to in pending.pop(name, []):
                    _rename(durable, what, to)
            elif op == "m":
                change(name, _FOLDER)
            elif op == "u":
                change(name, None)
            elif op in "rl" and name in names:
                moved = [(name, other)]
                if op == "r" and names[name] == _FOLDER:
                    moved += [(one, other + one[len(name) :]) for one in list(names) if one.startswith(f"{name}/")]
                for old, new in moved:
                    change(new, names[old])
                    if op == "r":
                        change(old, None)
        for changes in pending.values():
            kept = {"none": 0, "all": len(changes), "some": rng.randint(0, len(changes))}[variant]
            for what, to in changes[:kept]:
                _rename(durable, what, to)
        self._write(files, durable, variant, out, rng)

    def _begun(self, files: dict[int, _File]) -> tuple[dict[str, int], dict[str, int]]:
        """Names before the record, each of a flushed file or of a folder."""
        names = {self.root: _FOLDER}
        for path in sorted(self.before.rglob("*")) if self.before else ():
            name = f"{self.root}/{path.relative_to(self.before)}"
            if path.is_dir():
                names[name] = _FOLDER
            elif not path.name.endswith(_MEMORY):
                data = path.read_bytes()
                names[name] = len(files)
                files[names[name]] = _File(data=bytearray(data), flushed=data)
        return names, dict(names)

    def _write(
        self, files: dict[int, _File], durable: dict[str, int], variant: str, out: Path, rng: random.Random
    ) -> None:
        content = {number: files[number].after(variant, rng) for number in set(durable.values()) - {_FOLDER}}
        out.mkdir(mode=0o700, parents=True)
        for name in sorted(durable, key=lambda one: one.count("/")):
            path = out / os.path.relpath(name, self.root)
            if name == self.root or path.name.endswith(_MEMORY) or not path.parent.is_dir():
                continue
            if durable[name] == _FOLDER:
                path.mkdir(mode=0o700, exist_ok=True)
            else:
                path.write_bytes(content[durable[name]])
                path.chmod(0o600)


_FOLDER = -1


def _rename(names: dict[str, int], name: str, to: int | None) -> None:
    if to is None:
        names.pop(name, None)
    else:
        names[name] = to
