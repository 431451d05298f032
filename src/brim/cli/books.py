"""The gateway's books, as commands come to them: which store is meant, and a look into it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from brim.accounts.books import Books

Result = TypeVar("Result")

EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that are listened on but cannot be gone to, and what stands for them here."""

store_option = click.option(
    "--store",
    metavar="ADDRESS",
    help="The gateway's books, where they are not those of gateway.store: a file, or the URL of a "
    "PostgreSQL or Redis.",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the books are kept, and where their gateway is to be found."""

    address: str
    folder: Path
    """Where a file of books is that nobody named."""
    gateway: str

    def __str__(self) -> str:
        """Without the name and the password that may stand in an address."""
        from brim.accounts import FILE
        from brim.config import home_as_tilde

        if "://" not in self.address:
            return home_as_tilde(Path(self.address) if self.address else self.folder / FILE)
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def ask(self, work: Callable[[Books], Awaitable[Result]]) -> Result:
        """Open the books, do something with them, and close them."""
        import asyncio

        from brim.accounts import books_at

        async def done() -> Result:
            books = books_at(self.address, self.folder)
            await books.open()
            try:
                return await work(books)
            finally:
                await books.close()

        return asyncio.run(done())


def place_of(store: str | None) -> Place:
    """The books that are meant: those of a flag, or of the configuration."""
    from brim import config
    from brim.store import state_folder

    flags = {"gateway.store": store}
    loaded = config.discover(folder=Path.cwd(), environment=os.environ, flags=flags)
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)
    settings = loaded.config.gateway
    host = EVERYWHERE.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    gateway = f"http://{host}:{settings.port}"
    return Place(settings.store, state_folder(os.environ), gateway)
