"""Regenerate the code of the .proto files, or say that the committed code is stale.

``python -m shared.proto.generate`` writes; with ``--check`` it compares and exits with 1 when something differs. The
service itself is not generated: `shared.wire.transport` builds both ends from the list of methods in
`shared.wire.messages`.
"""

from __future__ import annotations

import importlib.resources
import sys
import tempfile
from pathlib import Path

__all__ = ["generated", "main"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def generated() -> dict[Path, str]:
    """Path of every generated file, and what it must hold."""
    from grpc_tools import protoc

    protos = sorted(HERE.glob("*.proto"))
    include = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as out:
        outputs = [f"--python_out={out}", f"--pyi_out={out}"]
        code = protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", *outputs, *map(str, protos)])
        if code:
            raise SystemExit(code)
        made = sorted(Path(out).rglob("*_pb2.py*"))
        return {ROOT / path.relative_to(out): path.read_text() for path in made}


def main() -> int:
    """Write the generated files, or compare them (``--check``); the exit code."""
    expected = generated()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in expected.items() if not path.exists() or path.read_text() != text]
        if stale:
            sys.stderr.write(f"stale generated code: {', '.join(stale)}; run make proto\n")
        return int(bool(stale))
    for path, text in expected.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
