"""The README's map: whoever opens a folder for the first time finds each file there in a line."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("jobs", "cluster", "dllm_core", "kernels")
TOGETHER = {"report", "scoring", "models", "commit", "cache", "frontier", "controller", "train"}  # a line for a folder


def test_the_map_names_every_file():
    told = (ROOT / "README.md").read_text().partition("\n## Map\n")[2]
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    named = [path for path in files if path.name != "__init__.py" and path.parent.name not in TOGETHER]
    assert len(named) > 100
    missing = [path for path in named if not re.search(rf"\b{re.escape(path.name)}\b", told)]
    assert [str(path.relative_to(ROOT)) for path in missing] == []
