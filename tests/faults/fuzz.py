"""Bytes that nobody would write, for every parser that reads a stranger's: a typed refusal or a value, and soon.

Two engines drive the same targets. Our own, in the suite and everywhere, changes known good inputs (bytes, and JSON by
its parts, so that what is hashed or signed stays in form), and keeps what reached a line of ours, or was refused in
words, that no earlier input did. ``python -m tests.faults.fuzz --atheris`` has libFuzzer do it, guided by every
branch, where the package atheris is installed.

A case is wrong where anything but a `Refusal` is raised, where it takes more than a second, or where the process
grows by more than twice the largest input that is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from pathlib import Path
from types import FrameType
from typing import Any

from shared.errors import Refusal
from tests.faults.tables import other_table

__all__ = ["TARGETS", "Found", "Target", "fuzz"]

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT / room}/" for room in ("shared", "site_agent", "coordinator"))
SLOW, HANGS = 1.0, 10  # CPU seconds of one case: too slow, and given up
KEPT = 4096  # inputs that others are made of: without an end they, and not the parser, would be what grows
TRACED = 8  # every so many cases, and each that was refused in new words, is run again line by line
CAP = 64 << 20
"""Bytes that a bundle's table may take here; no other target reads as much."""


@dataclass(frozen=True)
class Target:
    """One parser, and inputs that it takes.

    Args:
        apart: it reads through a library that can end its process, and the product runs it in one of its own: so do
            we. Such an end is counted, and is no fault of ours.
    """

    name: str
    seeds: tuple[bytes, ...]
    run: Callable[[bytes], object]
    form: str = "json"  # json, text, table or bytes: how it is best changed
    apart: bool = False


@dataclass
class Found:
    """What came of one target."""

    cases: int = 0
    taken: int = 0
    corpus: int = 0
    lines: int = 0
    slowest: float = 0.0
    grew_mb: float = 0.0
    ended: int = 0  # processes, where the parser runs in one of its own
    wrong: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """As a benchmark's file has it."""
        body = {name: getattr(self, name) for name in ("cases", "taken", "corpus", "lines", "ended", "wrong")}
        kinds = dict(sorted(self.refusals.items()))
        return body | {"slowest_s": round(self.slowest, 3), "grew_mb": round(self.grew_mb, 1), "refusals": kinds}


# -- one case --------------------------------------------------------------------------------------------------------
class _Hangs(BaseException):
    """Raised by the timer, past whatever a parser catches."""


@dataclass(frozen=True)
class Outcome:
    """What a parser did with an input: it was ``taken``, ``refused``, ``wrong``, or ``ended`` the process it ran in.

    Args:
        words: of the refusal, or the error.
        seconds: of CPU time.
        lines: of ours that were reached, where that was asked for.
        grew_mb: by how much its process has grown since it began, where that is another.
    """

    kind: str
    words: str = ""
    seconds: float = 0.0
    lines: frozenset[tuple[str, int]] = frozenset()
    grew_mb: float = 0.0


def judged(target: Target, data: bytes) -> Outcome:
    """Run it here."""
    begun, kind, words = time.thread_time(), "taken", ""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS)
        try:
            target.run(data)
        except Refusal as refusal:
            kind, words = "refused", f"{refusal.code} {refusal.must}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        kind, words = "wrong", f"{type(error).__name__}: {str(error)[:80]}"
    return Outcome(kind, words, time.thread_time() - begun)


class Reader:
    """A forked process that runs one target, input after input; another one follows when an input ends it."""

    def __init__(self, target: Target) -> None:
        self._target, self._child = target, 0

    def __call__(self, data: bytes, *, traced: bool = False) -> Outcome:
        """Run it there."""
        if not self._child:
            self._begin()
        try:
            self._line.send((data, traced))
            if self._line.poll(6 * HANGS):
                return Outcome(*self._line.recv())
            os.kill(self._child, signal.SIGKILL)
            return Outcome("wrong", f"nothing for {6 * HANGS} s")
        except (EOFError, OSError):
            code, self._child = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]), 0
            return Outcome("ended" if code < 0 else "wrong", f"ended by {code}")

    def _begin(self) -> None:
        self._line, theirs = Pipe()
        self._child = os.fork()
        if not self._child:
            self._line.close()
            faulthandler.disable()  # an end is counted, and not told in a hundred lines
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            first = _peak_mb()  # with whatever the process that it was forked from holds
            with contextlib.suppress(EOFError, OSError):
                while True:
                    data, traced = theirs.recv()
                    one = judged(self._target, data)
                    lines = _lines_of(self._target, data) if traced else set()
                    theirs.send((one.kind, one.words, one.seconds, frozenset(lines), _peak_mb() - first))
            os._exit(0)
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._child:
            self._line.close()
            os.waitpid(self._child, 0)
            self._child = 0


def counted(outcome: Outcome, data: bytes, found: Found) -> str:
    """Count it, and say in which words it was refused; blank where it was taken."""
    found.cases += 1
    found.slowest = max(found.slowest, outcome.seconds)
    if outcome.seconds > SLOW:
        _wrong(found, f"{outcome.seconds:.1f} s", data)
    if outcome.kind == "taken":
        found.taken += 1
        return ""
    if outcome.kind == "refused":
        found.refusals[outcome.words.partition(" ")[0]] += 1
    elif outcome.kind == "ended":
        found.ended += 1
    else:
        _wrong(found, outcome.words, data)
    return re.sub(r"[0-9]+|'[^']*'", "#", outcome.words)[:300]


def _wrong(found: Found, what: str, data: bytes) -> None:
    kinds = {line.partition(" of ")[0] for line in found.wrong}
    if what not in kinds and len(found.wrong) < 20:
        found.wrong.append(f"{what} of {data[:2000]!r}")


@functools.cache
def _is_ours(name: str) -> bool:
    return name.startswith(OURS)


def _lines_of(target: Target, data: bytes) -> set[tuple[str, int]]:
    """Lines of ours that an input reaches."""
    seen: set[tuple[str, int]] = set()

    def local(frame: FrameType, event: str, _: object) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return local(frame, event, argument) if _is_ours(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        target.run(data)
    except Exception:  # judged where it is run without a trace
        return seen
    finally:
        sys.settrace(before)
    return seen


def fuzz(target: Target, *, seed: int, cases: int = 0, seconds: float = 0.0) -> Found:
    """Try so many cases, or for so many CPU seconds of the parser; the same seed and number give the same cases."""
    rng, found = random.Random(f"{target.name} {seed}"), Found()
    corpus, words, lines = list(target.seeds), set[str](), set[tuple[str, int]]()
    reader = Reader(target) if target.apart else None
    first = spent = 0.0

    def hangs(number: int, frame: object) -> None:
        raise _Hangs(f"more than {HANGS} s")

    def new(data: bytes) -> str:
        """Try it; the words it was refused in. It is kept where they, or a line that it reached, are new."""
        nonlocal spent
        traced = not found.cases % TRACED and len(data) < 1 << 16
        outcome = reader(data, traced=traced) if reader else judged(target, data)
        said, reached = counted(outcome, data, found), outcome.lines
        spent += outcome.seconds
        found.grew_mb = max(found.grew_mb, outcome.grew_mb if reader else _peak_mb() - first)
        if not reader and (traced or (said not in words and len(data) < 1 << 16)):
            reached = frozenset(_lines_of(target, data))
        if len(corpus) < KEPT and ((said and said not in words) or not reached <= lines):
            corpus.append(data)
        words.add(said)
        lines.update(reached)
        return said

    before = signal.signal(signal.SIGVTALRM, hangs)
    try:
        first = _peak_mb()
        for data in target.seeds:
            said = new(data)
            assert not said, f"a seed of {target.name} is refused: {said}"
        while found.cases < cases or spent < seconds:
            new(mutated(rng.choice(corpus), corpus, target.form, rng))
    finally:
        signal.signal(signal.SIGVTALRM, before)
        if reader:
            reader.close()
    found.corpus, found.lines = len(corpus), len(lines)
    if found.grew_mb > 2 * CAP / 2**20:
        found.wrong.append(f"the process grew by {found.grew_mb:.0f} MB")
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- other bytes -----------------------------------------------------------------------------------------------------
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 10**40, -(10**40), 0.5, 1e308, -0.0, 1e-30, 5e-324),
    *("", "a", "\x00", "‮", "é", "x" * 5000, "../../etc/passwd", "0" * 64, "NaN", "1e999", "2026-02-30"),
    *([], {}, [[]], [None] * 50, {"a": {}}, {"": ""}, "latent_noise", "[[[[[", "='; DROP TABLE", "-1", "٣"),
)
TOKENS = tuple(
    text.encode()
    for text in (
        *(
            "~",
            "+",
            "*",
            ":",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ",",
            "=",
            "==",
            "|",
            "/",
            "-",
            "^",
            "**",
            "1e999",
            "0",
            "-1",
        ),
        *("Surv(", "cox(", "mean(", "I(", "`", "'", '"', "\n", "\t", "\x00", "__import__", "lambda", "nan", "inf", "é"),
        *("[[", "]]", '"""', "= 1", "= true", "= []", "= {}", "#", "\\u0000", "\u202e", "9" * 400, "(" * 300),
    )
)


def mutated(data: bytes, corpus: list[bytes], form: str, rng: random.Random) -> bytes:
    """Another input, made of this one."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if form == "table" and rng.random() < 0.5:
            data = other_table(corpus[0], rng)
        elif form == "json" and rng.random() < 0.75:
            data = _other_json(data, rng)
        elif form == "text" and rng.random() < 0.7:
            place = rng.randrange(len(data) + 1)
            data = data[:place] + rng.choice(TOKENS) + data[place + rng.choice((0, 0, 1, 5)) :]
        else:
            data = _other_bytes(data, corpus, rng)
    return data[: 2 << 20]


def _other_bytes(data: bytes, corpus: list[bytes], rng: random.Random) -> bytes:
    kind, place = rng.randrange(7), rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.choice((1, 1, 2, 4, 8, 64, 1024)))
    if kind == 0 and data:
        place = min(place, len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data[:place] + data[end:]
    if kind == 3:
        return data[:place] + data[place:end] * rng.choice((2, 3, 50)) + data[end:]
    if kind == 4:
        return data[:place] + rng.randbytes(rng.choice((1, 2, 4, 8))) + data[end:]
    if kind == 5:
        other = rng.choice(corpus)
        return data[:place] + other[rng.randrange(len(other) + 1) :]
    number = rng.choice((0, 1, 127, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
    return data[:place] + number.to_bytes(8, rng.choice(("little", "big")))[: end - place or 8] + data[end:]


def _other_json(data: bytes, rng: random.Random) -> bytes:
    """The same document with one part changed, in canonical form again where it has one."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return _other_bytes(data, [data], rng)
    places = list(_places(body))
    if not places:
        return json.dumps(rng.choice(ODD)).encode()
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("extra", "", "format", "é", str(key) + "x"))] = holder[key]
    elif kind == 1 or (kind == 2 and isinstance(holder, list)):
        holder.insert(rng.randrange(len(holder) + 1), holder[key])
    elif kind == 2:
        other, name = rng.choice(places)
        holder[key] = other[name] if name in other or (isinstance(other, list) and name < len(other)) else None
    elif kind == 3 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = holder[key] * rng.choice((-1, 0, 2, 10**6, 10**30)) + rng.choice((-1, 0, 1))
    elif kind == 4 and isinstance(holder[key], str):
        holder[key] = _other_bytes(holder[key].encode("utf-8", "surrogatepass"), [b"x"], rng).decode("utf-8", "replace")
    else:
        holder[key] = rng.choice(ODD)
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return data
    return text.encode("utf-8", "replace")


def _places(body: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(body, (dict, list)):
        for key in list(body) if isinstance(body, dict) else range(len(body)):
            yield body, key
            yield from _places(body[key])


# -- what is parsed --------------------------------------------------------------------------------------------------
def _targets() -> Mapping[str, Target]:
    """Every parser that reads what a stranger wrote; made when asked for, because it imports the whole product."""
    sys.path.insert(0, str(ROOT / "tests"))
    from faults.parsers import targets

    return {target.name: target for target in targets()}


class _Lazily(Mapping[str, Target]):
    def __getitem__(self, name: str) -> Target:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @functools.cached_property
    def _all(self) -> Mapping[str, Target]:
        return _targets()


TARGETS: Mapping[str, Target] = _Lazily()


# -- the command -----------------------------------------------------------------------------------------------------
def _by_libfuzzer(name: str, seed: int, seconds: float, out: Path) -> None:
    """Have libFuzzer try one target in this process, which it ends; what came of it is written as it goes."""
    import atheris

    with atheris.instrument_imports(include=["shared", "site_agent", "coordinator"]):
        target = TARGETS[name]
    found, corpus, reader = Found(), list(target.seeds), Reader(target) if target.apart else None
    peak, begun = _peak_mb(), time.process_time()

    def other(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        made = mutated(data, corpus, target.form, rng) if rng.random() < 0.5 else atheris.Mutate(data, len(data) + 8)
        return made[:most]

    def case(data: bytes) -> None:
        counted(reader(data) if reader else judged(target, data), data, found)
        if not found.cases % 500 or time.process_time() - begun > seconds:
            found.grew_mb = _peak_mb() - peak
            out.write_text(json.dumps(found.to_json()))
        if time.process_time() - begun > seconds:
            os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(target.seeds):
            (Path(folder) / f"{number}").write_bytes(data)
        options = [sys.argv[0], folder, f"-seed={seed + 1}", "-max_len=65536", "-rss_limit_mb=0", "-verbosity=0"]
        atheris.Setup([*options, "-timeout=60"], case, custom_mutator=other)
        atheris.Fuzz()


def _child(name: str, given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """One target in a process of its own: what kills it is told as well."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        if not given.atheris:  # forked: importing the whole product takes longer than most targets
            child = os.fork()
            if not child:
                found = fuzz(TARGETS[name], seed=given.seed, cases=given.cases, seconds=seconds)
                out.write_text(json.dumps(found.to_json()))
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            body: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"cases": 0, "wrong": []}
            if code:
                body["wrong"].append(f"the process ended with {code}")
            return body
        options = ["--one", name, "--out", str(out), "--seed", str(given.seed), "--seconds", str(seconds)]
        options += ["--atheris"]
        ended = subprocess.run([sys.executable, "-m", "tests.faults.fuzz", *options], cwd=ROOT, capture_output=True)
        body = json.loads(out.read_text()) if out.exists() else {"cases": 0, "wrong": []}
        if ended.returncode:
            body["wrong"].append(f"the process ended with {ended.returncode}: {ended.stderr.decode()[-300:]}")
        return body


def main() -> int:
    """Run every target, and write what came of it."""
    from tests.benchmarks import record

    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="only these")
    parser.add_argument("--cases", type=int, default=0, help="of each target")
    parser.add_argument("--seconds", type=float, default=0.0, help="CPU seconds of all targets together")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--atheris", action="store_true", help="have libFuzzer do it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _by_libfuzzer(given.one, given.seed, given.seconds, given.out)
    names = given.targets or list(TARGETS)
    print(f"seed {given.seed}", flush=True)
    results = {}
    for name in names:
        results[name] = _child(name, given, given.seconds / len(names))
        print(f"{name:>20}  {results[name]['cases']:>9,} cases, {len(results[name]['wrong'])} wrong", flush=True)
        for line in results[name]["wrong"]:
            print(f"{'':>22}{line[:400]}")
    total = sum(one["cases"] for one in results.values())
    wrong = sum(len(one["wrong"]) for one in results.values())
    print(f"{total:,} cases of {len(names)} parsers, {wrong} wrong")
    if not given.targets:
        engine = "atheris (libFuzzer)" if given.atheris else "our own"
        summary = {"cases": total, "wrong": wrong, "parsers": len(names), "engine": engine, "targets": results}
        summary |= {"ended": sum(one.get("ended", 0) for one in results.values())}
        summary |= {most: max(one.get(most, 0) for one in results.values()) for most in ("slowest_s", "grew_mb")}
        words = f"python -m tests.faults.fuzz --seconds {given.seconds:g} --cases {given.cases} --seed {given.seed}"
        words += " --atheris" if given.atheris else ""
        record.write("fuzz", summary, seed=given.seed, command=words)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
