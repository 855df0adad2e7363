"""The README as an index of packages shows it, where the repository's own files cannot be linked; types of our module.

Type checkers read `py.typed` of packages alone (PEP 561): a module of one file has its types in a package of stubs,
which here is the module's own lines of names.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]+\)")


class BuildWithStubs(build_py):
    """Put the types of `tributary_meta` beside it."""

    def run(self) -> None:
        """Build as ever; an editable installation has the file itself."""
        super().run()
        if not self.editable_mode:
            stubs = Path(self.build_lib) / "tributary_meta-stubs"
            stubs.mkdir(exist_ok=True)
            module = (Path(__file__).parent / "tributary_meta.py").read_text(encoding="utf-8")
            (stubs / "__init__.pyi").write_text(module[module.index("from coordinator.") :], encoding="utf-8")


setup(
    cmdclass={"build_py": BuildWithStubs},
    long_description=LINK.sub(r"\1", README),
    long_description_content_type="text/markdown",
)
