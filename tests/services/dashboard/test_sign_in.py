"""Sign-in for the dashboard in a real browser, at a provider that others wrote (on Authlib)."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from brim.config import OidcConfig
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import with_gateway
from tests.support.gateway.process import run_gateway
from tests.support.services.browser import config

ADMIN = {"sub": "ann", "email": "ann@example.com", "email_verified": True, "groups": ["admins"]}
GUEST = {"sub": "bob", "email": "bob@example.com", "email_verified": True, "groups": []}


@contextmanager
def run_issuer() -> Iterator[str]:
    """Run the provider as a process; yield its issuer."""
    users = [each for user in (ADMIN, GUEST) for each in ("--user-claims", json.dumps(user))]
    command = [sys.executable, "-u", "-m", "oidc_provider_mock", "--port", "0", *users]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        found = (re.search(r"running on (http://\S+)", line) for line in process.stderr)
        yield next(match[1] for match in found if match)
        process.kill()


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a gateway with sign-in."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with run_issuer() as issuer, ScriptedServer("Hello.") as upstream:
        oidc = OidcConfig(
            issuer=issuer,
            public_url=address,
            client_id="brim",
            client_secret_env="SECRET",
            operators=("groups=admins",),
        )
        settings = with_gateway(config(upstream.url), oidc=oidc)
        with run_gateway(settings, {"SECRET": "any"}, port):
            yield address


def test_an_operator_signs_in_manages_keys_and_signs_out(browser: Browser, address: str) -> None:
    page = browser.new_context(bypass_csp=True).new_page()
    page.goto(f"{address}/#keys")
    link = page.get_by_role("link", name="Sign in with your organization")
    expect(link).to_be_visible()
    assert Axe().run(page).response["violations"] == []
    link.click()
    page.get_by_text("bob").click()
    expect(page.get_by_text("you are not one of the operators")).to_be_visible()
    link.click()
    page.get_by_text("ann").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.get_by_role("link", name="Keys").click()
    page.get_by_role("button", name="Add key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("alice")
    dialog.get_by_role("button", name="Create key").click()
    dialog.get_by_role("button", name="Done").click()
    page.get_by_role("link", name="Changes").click()
    expect(page.locator("#change-list")).to_contain_text("oidc:ann@example.com")
    page.reload()
    expect(page.locator("#change-list")).to_contain_text("key.add")
    page.get_by_role("button", name="Sign out").click()
    expect(link).to_be_visible()
    page.reload()
    expect(link).to_be_visible()
    page.context.close()
