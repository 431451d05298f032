"""OpenID Connect: sign-in for the dashboard, and tokens of the provider as keys."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from brim.config import Config, OidcConfig
from brim.errors import ConfigError, InputError
from brim.gateway import identity
from brim.gateway.asgi import create_app
from brim.testing import ScriptedServer
from tests.support.gateway.accounts import (
    bearer_headers,
    create_secret,
    ledger,
    make_priced_config,
    only_row,
    run_in_store,
    say_hi,
    set_caps,
    with_gateway,
)
from tests.support.gateway.process import Running, run_gateway
from tests.support.gateway.provider import (
    AUDIENCE,
    CLIENT,
    CLIENT_SECRET,
    IdentityServer,
    SigningKey,
    run_provider,
)
from tests.support.gateway.requests import wait_until

PUBLIC = "https://gateway.example.com"
SECRETS = {"OIDC_SECRET": CLIENT_SECRET, "SESSION_SECRET": "a secret that gateways share"}


@pytest.fixture
def provider() -> Iterator[IdentityServer]:
    with run_provider() as provider:
        yield provider


def make_config(provider: IdentityServer, upstream: str, **settings: Any) -> Config:
    given: dict[str, Any] = {
        "issuer": provider.issuer,
        "public_url": PUBLIC,
        "client_id": CLIENT,
        "client_secret_env": "OIDC_SECRET",
        "session_secret_env": "SESSION_SECRET",
        "operators": ("groups=admins",),
        "audience": AUDIENCE,
        "key": "staff",
        "key_claim": "client_id",
        **settings,
    }
    return with_gateway(make_priced_config(upstream), oidc=OidcConfig(**given))


@pytest.fixture
def served(provider: IdentityServer, upstream: ScriptedServer) -> Iterator[Running]:
    create_secret("staff")
    with run_gateway(make_config(provider, upstream.url), SECRETS) as served:
        yield served


# Tokens as keys


def test_a_token_stands_for_a_key_and_names_the_end_user(
    served: Running, provider: IdentityServer
) -> None:
    assert say_hi(served, provider.token(), user="mallory").status_code == 200
    wait_until(lambda: len(ledger()) == 1)
    assert (only_row().key_name, only_row().user) == ("staff", "u-1")


def test_a_token_without_the_claim_of_the_user_is_its_subject(
    provider: IdentityServer, upstream: ScriptedServer
) -> None:
    create_secret("staff")
    with run_gateway(make_config(provider, upstream.url, user_claim="email"), SECRETS) as served:
        token = provider.token(email_verified=False)
        assert say_hi(served, token, user="mallory").status_code == 200
        wait_until(lambda: len(ledger()) == 1)
    assert only_row().user == "u-1"


def test_a_claim_chooses_the_key_and_caps_of_end_users_apply(
    served: Running, provider: IdentityServer
) -> None:
    create_secret("batch", "0.000001/day")
    assert say_hi(served, provider.token(client_id="batch")).status_code == 429
    key = next(k for k in run_in_store(lambda store: store.keys()) if k.name == "staff")
    set_caps(f"users:{key.id}", "0.002/day")
    token = provider.token(sub="u-2", exp=int(time.time()) + 50)
    assert [say_hi(served, token).status_code for _ in range(60)][-1] == 429
    assert say_hi(served, provider.token(sub="u-3")).status_code == 200


def test_a_token_whose_key_is_revoked_or_missing_is_rejected(
    served: Running, provider: IdentityServer
) -> None:
    answer = say_hi(served, provider.token(client_id="unknown"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_key_for_token")
    token = provider.token()
    assert say_hi(served, token).status_code == 200
    run_in_store(lambda store: store.revoke("staff"))
    assert say_hi(served, token).status_code in (401, 403)


def test_a_token_never_becomes_an_operator_by_the_name_of_a_key(
    served: Running, provider: IdentityServer
) -> None:
    create_secret("boss", is_operator=True)
    token = provider.token(client_id="boss")
    assert say_hi(served, token).status_code == 403
    headers = bearer_headers(token)
    assert httpx.get(f"{served.url}/brim/keys", headers=headers).status_code == 403


def _encode(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _sign_with_the_public_key(provider: IdentityServer) -> str:
    """Sign with HMAC, and the public key as its secret: the classic confusion of algorithms."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = provider.key.private.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    unsigned = _encode({"alg": "HS256", "kid": "first"}, provider.claims()).rstrip(".")
    digest = hmac.new(pem, unsigned.encode(), hashlib.sha256).digest()
    return f"{unsigned}.{urlsafe_b64encode(digest).rstrip(b'=').decode()}"


BAD_TOKENS: Mapping[str, Callable[[IdentityServer], str]] = {
    "expired": lambda p: p.token(exp=int(time.time()) - 60),
    "not yet valid": lambda p: p.token(nbf=int(time.time()) + 600),
    "issued in the future": lambda p: p.token(iat=int(time.time()) + 600),
    "for another audience": lambda p: p.token(aud="https://other.example.com"),
    "an ID token": lambda p: p.token(aud=CLIENT),
    "of another issuer": lambda p: p.token(iss="https://evil.example.com"),
    "without an end": lambda p: p.key.sign({**p.claims(), "exp": None}),
    "without a subject": lambda p: p.key.sign({k: v for k, v in p.claims().items() if k != "sub"}),
    "with an empty subject": lambda p: p.token(sub=""),
    "not signed": lambda p: _encode({"alg": "none"}, p.claims()),
    "not signed, with a key": lambda p: _encode({"alg": "none", "kid": "first"}, p.claims()),
    "signed with the public key": _sign_with_the_public_key,
    "of an unknown key": lambda p: SigningKey("second", "attacker").sign(p.claims()),
    "of another key with the same id": lambda p: SigningKey("first", "attacker").sign(p.claims()),
    "with its own key": lambda p: SigningKey("x", "attacker").sign(
        p.claims(), jwk=SigningKey("x", "attacker").public
    ),
    "with another algorithm": lambda p: jwt.encode(
        p.claims(), p.key.private, algorithm="PS256", headers={"kid": "first"}
    ),
    "changed": lambda p: p.token()[:-8] + "AAAAAAAA",
    "malformed": lambda _: "eyJhbGciOiJSUzI1NiJ9.e30.x",
    "no JSON": lambda _: "eyJh.!!!.x",
}


def test_no_other_token_is_accepted(served: Running, provider: IdentityServer) -> None:
    for name, make in BAD_TOKENS.items():
        answer = say_hi(served, make(provider))
        assert (answer.status_code, name) == (401, name)
        operator = make(provider)
        found = httpx.get(f"{served.url}/brim/keys", headers=bearer_headers(operator))
        assert (found.status_code, name) == (401, name)
    assert provider.requests.count("/keys") <= 2  # unknown ids do not make it ask again and again


def test_a_token_ends_while_it_is_cached(served: Running, provider: IdentityServer) -> None:
    token = provider.token(exp=int(time.time()) - 29)  # with the leeway, a second is left
    assert say_hi(served, token).status_code == 200
    time.sleep(1.1)
    assert say_hi(served, token).status_code == 401


def test_keys_of_the_provider_rotate(
    served: Running, provider: IdentityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "REFRESH_SECONDS", 0.0)
    old = provider.token()
    assert say_hi(served, old).status_code == 200
    provider.key = SigningKey("next", "provider, later")
    assert say_hi(served, provider.token()).status_code == 401
    provider.published = [provider.key.public]
    assert say_hi(served, provider.token()).status_code == 200
    assert say_hi(served, provider.key.sign(provider.claims(), kid="first")).status_code == 401


def test_an_unavailable_provider_rejects_tokens_only(
    provider: IdentityServer, upstream: ScriptedServer
) -> None:
    secret = create_secret("staff")
    provider.metadata = {"issuer": "https://evil.example.com"}
    with run_gateway(make_config(provider, upstream.url), SECRETS) as served:
        answer = say_hi(served, provider.token())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "sign_in_unavailable")
        assert say_hi(served, secret).status_code == 200


# Sign-in


class Browser:
    """A client that keeps cookies like a browser at the public address."""

    def __init__(self, served: Running) -> None:
        self.cookies: dict[str, str] = {}
        self.flags: dict[str, str] = {}
        self.url = served.url

    def get(self, target: str, method: str = "GET", **headers: str) -> httpx.Response:
        path = target.removeprefix(PUBLIC)
        jar = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"sec-fetch-site": "same-origin", "cookie": jar, **headers}
        answer = httpx.request(method, self.url + path, headers=sent)
        for line in answer.headers.get_list("set-cookie"):
            pair, _, flags = line.partition("; ")
            name, _, value = pair.partition("=")
            self.flags[name] = flags
            self.cookies[name] = value
            if not value:
                del self.cookies[name]
        return answer

    def visit_provider(self) -> str:
        """Begin to sign in; return the address to which the provider leads back."""
        begun = self.get("/brim/sign-in")
        assert begun.status_code == 303
        return httpx.get(begun.headers["location"]).headers["location"]

    def sign_in(self) -> str:
        """Sign in; return the address that follows."""
        return self.get(self.visit_provider(), **{"sec-fetch-site": "cross-site"}).headers[
            "location"
        ]


@pytest.fixture
def browser(served: Running, provider: IdentityServer) -> Browser:
    provider.user["groups"] = ["staff", "admins"]
    return Browser(served)


def test_an_operator_signs_in_works_and_signs_out(browser: Browser) -> None:
    assert browser.get("/brim/session").json()["operator"] is None
    assert browser.sign_in() == f"{PUBLIC}/"
    assert browser.get("/brim/session").json()["operator"] == "ann@example.com"
    assert browser.get("/brim/keys").status_code == 200
    assert browser.get("/brim/keys/staff", "DELETE").status_code == 200
    (entry, *_) = browser.get("/brim/audit").json()["data"]
    assert (entry["actor"], entry["action"]) == ("oidc:ann@example.com", "key.revoke")
    assert browser.get("/brim/sign-out", "POST").status_code == 200
    assert browser.cookies == {}
    assert browser.get("/brim/keys").status_code == 401


def test_the_cookies_are_for_the_dashboard_only(browser: Browser) -> None:
    location = browser.visit_provider()
    assert browser.flags["__Host-brim-sign-in"] == (
        "Max-Age=600; Path=/; HttpOnly; SameSite=Lax; Secure"
    )
    browser.get(location)
    flags = browser.flags["__Host-brim-session"]
    assert flags == "Max-Age=28800; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert list(browser.cookies) == ["__Host-brim-session"]
    assert browser.get("/v1/models").status_code == 401
    assert "ann" not in browser.cookies["__Host-brim-session"]


def test_other_pages_cannot_use_a_session(browser: Browser) -> None:
    browser.sign_in()
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin", "origin": "http://localhost:3000"},
        {"sec-fetch-site": "", "origin": "http://localhost:3000"},
        {"sec-fetch-site": ""},
    ):
        answer = browser.get("/brim/keys/staff", "DELETE", **headers)
        assert (answer.status_code, headers) == (403, headers)
        assert browser.get("/brim/sign-out", "POST", **headers).status_code == 403
    answer = browser.get("/brim/keys", **{"sec-fetch-site": "same-origin", "origin": PUBLIC})
    assert answer.status_code == 200


def test_a_forged_or_old_session_is_worth_nothing(
    browser: Browser, served: Running, provider: IdentityServer, upstream: ScriptedServer
) -> None:
    browser.sign_in()
    valid = browser.cookies["__Host-brim-session"]
    config = make_config(provider, upstream.url)
    with run_gateway(config, SECRETS) as other:  # it has the same secret
        browser.url = other.url
        assert browser.get("/brim/keys").status_code == 200
    others = make_config(provider, upstream.url, operators=("groups=owners",))
    changed = (config, {**SECRETS, "SESSION_SECRET": "another"}), (others, SECRETS)
    for settings, environment in changed:
        with run_gateway(settings, environment) as other:
            browser.url = other.url
            assert browser.get("/brim/keys").status_code == 401
    browser.url = served.url
    sign_in = Browser(served)
    sign_in.visit_provider()
    for value in (valid[:-4] + "AAAA", "x", "", sign_in.cookies["__Host-brim-sign-in"]):
        browser.cookies = {"__Host-brim-session": value}
        assert browser.get("/brim/keys").status_code == 401


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nonce": "of another sign-in"}, "failed"),
        ({"nonce": None}, "failed"),
        ({"aud": "another client"}, "failed"),
        ({"aud": [CLIENT, "another client"]}, "failed"),
        ({"azp": "another client"}, "failed"),
        ({"iss": "https://evil.example.com"}, "failed"),
        ({"exp": 1}, "failed"),
        ({"groups": ["staff"]}, "denied"),
        ({"groups": "not-admins"}, "denied"),
        ({"groups": {"admins": True}}, "denied"),
    ],
)
def test_a_wrong_id_token_gives_no_session(
    browser: Browser, provider: IdentityServer, change: dict[str, Any], problem: str
) -> None:
    provider.change = lambda claims: {**claims, **change}
    assert browser.sign_in() == f"{PUBLIC}/#sign-in/{problem}"
    assert browser.cookies == {}
    assert browser.get("/brim/keys").status_code == 401


def test_a_callback_counts_once_in_the_browser_that_began(
    browser: Browser, served: Running
) -> None:
    location = browser.visit_provider()
    other = Browser(served)
    assert other.get(location).headers["location"] == f"{PUBLIC}/#sign-in/expired"
    other.visit_provider()  # it has a state, but of its own
    assert other.get(location).headers["location"] == f"{PUBLIC}/#sign-in/expired"
    kept = dict(browser.cookies)
    evil = location.replace("iss=http", "iss=https")
    assert browser.get(evil).headers["location"] == f"{PUBLIC}/#sign-in/failed"
    browser.cookies = dict(kept)
    assert browser.get(location).headers["location"] == f"{PUBLIC}/"
    browser.cookies = dict(kept)
    assert browser.get(location).headers["location"] == f"{PUBLIC}/#sign-in/failed"


def test_nothing_in_a_request_says_where_to_go(browser: Browser) -> None:
    evil = "https://evil.example.com/"
    begun = browser.get(f"/brim/sign-in?next={evil}&redirect_uri={evil}", host="evil.example.com")
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert query["redirect_uri"] == [f"{PUBLIC}/brim/sign-in/callback"]
    answer = browser.get(f"/brim/sign-in/callback?error={evil}&state={query['state'][0]}")
    assert answer.headers["location"] == f"{PUBLIC}/#sign-in/denied"


def test_an_unverified_address_is_no_operator(
    browser: Browser, provider: IdentityServer, upstream: ScriptedServer
) -> None:
    config = make_config(provider, upstream.url, operators=("email=ann@example.com",))
    with run_gateway(config, SECRETS) as served:
        browser.url = served.url
        provider.user["email_verified"] = False
        assert browser.sign_in() == f"{PUBLIC}/#sign-in/denied"
        provider.user["email_verified"] = True
        assert browser.sign_in() == f"{PUBLIC}/"


def test_an_operators_token_opens_the_administration(
    served: Running, provider: IdentityServer
) -> None:
    headers = bearer_headers(provider.token(groups=["admins"]))
    assert httpx.get(f"{served.url}/brim/keys", headers=headers).status_code == 200
    headers = bearer_headers(provider.token(groups=["staff"]))
    assert httpx.get(f"{served.url}/brim/keys", headers=headers).status_code == 403


def test_without_a_provider_there_is_no_sign_in(upstream: ScriptedServer) -> None:
    with run_gateway(make_priced_config(upstream.url)) as served:
        assert httpx.get(f"{served.url}/brim/session").json()["sign_in"] is False
        assert httpx.get(f"{served.url}/brim/sign-in").status_code == 404


# Settings


def test_a_secret_that_is_not_set_stops_the_start(provider: IdentityServer) -> None:
    with pytest.raises(InputError, match="OIDC_SECRET is not set"):
        create_app(make_config(provider, "http://127.0.0.1:9"), {})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"issuer": "http://login.example.com"}, "issuer without https"),
        ({"public_url": "http://gateway.example.com"}, "public_url without https"),
        ({"public_url": None}, "both client_id and public_url"),
        ({"key": "", "key_claim": ""}, "audience, and key"),
        ({"issuer": None}, "needs an issuer"),
    ],
)
def test_unsafe_settings_are_rejected(changed: dict[str, Any], problem: str) -> None:
    with run_provider() as provider:
        oidc = make_config(provider, "http://127.0.0.1:9").gateway.oidc
    assert problem in (replace(oidc, **changed).find_problem() or "")


def test_a_file_with_unsafe_settings_is_rejected(tmp_path: Any) -> None:
    from brim import config

    file = tmp_path / "brim.toml"
    file.write_text('[gateway.oidc]\nissuer = "http://login.example.com"\nclient_id = "x"\n')
    with pytest.raises(ConfigError, match=r"gateway\.oidc has issuer without https"):
        config.discover(folder=tmp_path, environment={"BRIM_CONFIG": str(file)})
