"""Numbers in sentences."""


def counted(count: int, noun: str) -> str:
    """1 file, 2,000 files."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
