"""A command line that does one small thing, for the tests of what starts command lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from shared.base import keys, locked
from shared.base.locked import KeyCost

keys.COST = KeyCost(n=2, r=1)  # as in conftest.py, of which these processes know nothing
SEEN: list[str] = []
GUESSES: list[str] = []
derive = locked.derive


def counted(passphrase, salt, cost):
    GUESSES.append(passphrase)
    return derive(passphrase, salt, cost)


locked.derive = counted


def main(argv):
    verb, *rest = argv
    if verb == "tell":
        from shared.base.randomness import secure_rng

        SEEN.append(rest[0])
        body = {"pid": os.getpid(), "parent": os.getppid(), "seen": SEEN, "word": os.environ.get("WORD"), "argv": argv}
        print(json.dumps({**body, "draw": secure_rng().generator.random(), "tty": sys.stdin.isatty()}))
        raise SystemExit(int(rest[1]) if len(rest) > 1 else 0)
    if verb == "ready":
        from shared.base.randomness import secure_rng
        from site_agent.ledger import holds

        body = {"ready": holds._curve.cache_info().currsize, "draw": secure_rng().generator.random()}
        print(json.dumps({**body, "key": keys.SigningKey.generate().public.hex}))
    if verb == "break":
        raise RuntimeError("as it was told to")
    if verb == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "make":
        made = keys.SigningKey.generate()
        made.save(Path(rest[0]), rest[1])
        print(json.dumps({"key": made.public.hex, "guesses": len(GUESSES)}))
    if verb == "open":
        key = keys.SigningKey.load(Path(rest[0]), rest[1])
        print(json.dumps({"key": key.public.hex, "guesses": len(GUESSES)}))
    if verb == "work":
        while time.process_time() < float(rest[0]):
            pass
    if verb == "stay":
        Path(rest[0]).write_text(str(os.getpid()))
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1:])
