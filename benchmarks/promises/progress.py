"""Progress of a long check."""

from __future__ import annotations

import sys


def progress(done: int, total: int) -> None:
    """Show the progress on a terminal, and nothing elsewhere."""
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\033[K"
        print(f"  {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)
