"""Types of the fixtures that hand out servers and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from brim.providers.local import LocalServer

EmptyStore: TypeAlias = Callable[[str], str]
"""Takes "sqlite", "postgres" or "redis"; returns the address of an empty account store."""


class LlamaWith(Protocol):
    """Returns a running llama.cpp server with these settings, shared by all tests of a run."""

    def __call__(
        self, *, window: int = 2048, slots: int = 1, template: str | None = None
    ) -> LocalServer: ...
