"""The gateway's books, as commands come to them: which store is meant, and a look into it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

import click

from brim.errors import InputError

if TYPE_CHECKING:
    from brim.gateway.accounts.store import AccountStore

Result = TypeVar("Result")

WILDCARD_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that are listened on but cannot be gone to, and what stands for them here."""

store_option = click.option(
    "--store",
    metavar="ADDRESS",
    help="The gateway's books, where they are not those of gateway.store: a file, or the URL of a "
    "PostgreSQL or Redis.",
)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where the books are kept, and where their gateway is to be found."""

    address: str
    folder: Path
    """Where a file of books is that nobody named."""
    gateway: str
    is_given: bool = False
    """By a flag. Only the configuration may name a file that is not there yet."""

    def __str__(self) -> str:
        from brim.gateway.accounts.addresses import redact_address

        return redact_address(self.address, self.folder)

    def write(self, work: Callable[[AccountStore], Awaitable[Result]]) -> Result:
        """Open the books, made where there are none yet, do something with them, and close them."""
        from brim.gateway.accounts import create_store

        return _run_with_store(create_store(self.address, self.folder), work)

    def look(self, work: Callable[[AccountStore], Awaitable[Result]]) -> Result:
        """The same with nothing made: books that are not there yet are as blank as new ones."""
        from brim.gateway.accounts import create_store, file_path

        file = file_path(self.address, self.folder)
        if file is None or file.exists():
            return self.write(work)
        if self.is_given:
            raise InputError(f"there are no books in {self}; `brim keys add` makes new ones")
        with TemporaryDirectory() as elsewhere:
            return _run_with_store(create_store("", Path(elsewhere)), work)


def _run_with_store(
    books: AccountStore, work: Callable[[AccountStore], Awaitable[Result]]
) -> Result:
    import asyncio

    async def done() -> Result:
        await books.open()
        try:
            return await work(books)
        finally:
            await books.close()

    return asyncio.run(done())


def locate_store(store: str | None) -> StoreLocation:
    """The books that are meant: those of a flag, or of the configuration."""
    from brim import config
    from brim.storage import state_folder

    flags = {"gateway.store": store}
    loaded = config.discover(folder=Path.cwd(), environment=os.environ, flags=flags)
    for notice in loaded.notices:
        click.echo(f"brim: {notice}", err=True)
    settings = loaded.config.gateway
    host = WILDCARD_HOSTS.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    gateway = f"http://{host}:{settings.port}"
    return StoreLocation(settings.store, state_folder(os.environ), gateway, is_given=bool(store))
