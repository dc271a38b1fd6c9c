"""Lines per package file. A file past the budget needs a line in its docstring that starts with "Longer than"."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("jobs", "cluster", "dllm_core", "kernels")
BUDGET = 250  # lines; what can be read in one sitting


def excused(source: str) -> bool:
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return any(line.startswith("Longer than") for line in docstring.splitlines())


def main() -> int:
    over = []
    for package in PACKAGES:
        sources = {path: path.read_text() for path in sorted((ROOT / package).rglob("*.py"))}
        counts = {path: len(source.splitlines()) for path, source in sources.items()}
        print(f"{sum(counts.values()):6d}  {package}/")
        for path, lines in counts.items():
            print(f"{lines:6d}    {path.relative_to(ROOT)}")
            if lines > BUDGET and not excused(sources[path]):
                over.append(f"{path.relative_to(ROOT)} has {lines} lines")
    for message in over:
        print(f'{message}; split it, or say why in its docstring on a line that starts with "Longer than" {BUDGET}')
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
