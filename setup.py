"""The README as an index of packages shows it: there, the repository's own files cannot be linked."""

import re
from pathlib import Path

from setuptools import setup

README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]+\)")

setup(long_description=LINK.sub(r"\1", README), long_description_content_type="text/markdown")
