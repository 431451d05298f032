"""How far a long proof is, for whoever watches it."""

from __future__ import annotations

import sys


def progress(done: int, of: int) -> None:
    """Show it on a terminal; elsewhere nobody waits."""
    if sys.stderr.isatty():
        end = "\r" if done < of else "\r\033[K"
        print(f"  {done:,} of {of:,}", end=end, file=sys.stderr, flush=True)
