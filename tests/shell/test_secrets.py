"""Secrets: what is masked, and what has to stay."""

from __future__ import annotations

import base64
import json
import re
import shlex
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.shell.approval.secret_masker import MaskedText, Masker

MIXED = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7dE9f"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n{0}\n{0}\nabcd==\n-----END RSA PRIVATE KEY-----".format(
    (MIXED + MIXED)[:64]
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"

TOKENS = [
    ("an Anthropic key", f"sk-ant-api03-{MIXED}-{MIXED}AA"),
    ("an API key", f"sk-{MIXED}"),
    ("an API key", f"sk-proj-{MIXED[:20]}_{MIXED}-x"),
    ("an API key", "sk-or-v1-" + "0123456789abcdef" * 4),
    ("an API key", f"gsk_{MIXED}"),
    ("a GitHub token", f"ghp_{MIXED[:36]}"),
    ("a GitHub token", f"gho_{MIXED[:36]}"),
    ("a GitHub token", f"github_pat_{MIXED[:22]}_{MIXED}"),
    ("a GitLab token", f"glpat-{MIXED[:20]}"),
    ("a Slack token", f"xoxb-123456789012-1234567890123-{MIXED[:24]}"),
    ("an AWS access key id", "AKIAIOSFODNN7EXAMPLE"),
    ("an AWS access key id", "ASIAIOSFODNN7EXAMPLE"),
    ("a Google key", f"AIza{MIXED[:35]}"),
    ("a Hugging Face token", f"hf_{MIXED[:34]}"),
    ("an npm token", f"npm_{MIXED[:36]}"),
    ("a PyPI token", f"pypi-AgEIcHlwaS5vcmc{MIXED}"),
    ("a Stripe key", f"sk_live_{MIXED[:24]}"),
    ("a Stripe key", f"rk_test_{MIXED[:24]}"),
    ("a Slack webhook", f"hooks.slack.com/services/T0001/B0001/{MIXED[:24]}"),
    ("a JSON web token", JWT),
    ("a private key", PEM),
    ("a private key", PEM.replace("RSA ", "")),
    ("a private key", PEM.replace("RSA", "OPENSSH")),
    ("a private key", PEM.replace("\n", "\r\n")),
    ("a private key", PEM.replace("\n", "\\n")),
]
IN_PLACE = [
    ("a password in a URL", "postgres://me:{}@db.local:5432/app", "hunter2"),
    ("a password in a URL", "git clone https://oauth2:{}@example.com/x.git", "p@ss:word"),
    ("a password in a URL", "redis://:{}@cache:6379", "s3cr3t"),
    ("an authorization header", "Authorization: Bearer {}", MIXED),
    ("an authorization header", "> authorization: Basic {}", "dXNlcjpwYXNzd29yZDEyMw=="),
    ("an authorization header", """curl -H "Authorization: Bearer {}" x""", MIXED[:20]),
    ("an authorization header", """{{"Authorization": "token {}"}}""", MIXED[:20]),
    ("a token or key", "aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("a token or key", "export STRANGE_API_KEY={}", "abcd-efgh"),
    ("a token or key", "export MY_KEY={}", "abc123secret"),
    ("a token or key", "cd x; export KEY='{}' && make", "word"),
    ("a token or key", "set -gx DEPLOY_KEY {}", "abc12345"),
    ("a token or key", 'set -x GITHUB_TOKEN "{}"; ls', "abc12345"),
    ("a password", "setenv DB_PASSWORD {}", "hunter2"),
    ("a token or key", "client_secret: {}", "8f3-k2j4h"),
    ("a token or key", "X-Api-Key: {}", "8f3ak2j4h99"),
    ("a token or key", "//registry.example.com/:_authToken={}", "8f3ak2j4h99"),
    ("a password", "password={}", "hunter2!"),
    ("a password", "DB_PASSWORD={}", "postgres"),
    ("a password", "export DB_PASSWORD='{}'", "correct horse battery"),
    ("a password", "  - MYSQL_ROOT_PASSWORD={}", "root1234"),
    ("a password", """  "password": "{}",""", "Tr0ub4dor"),
    ("a password", "spring.datasource.password={}", "Tr0ub4dor"),
    ("a password", "mysql --user=root --password={} app", "Tr0ub4dor"),
    ("a password", "mysql --user=root --password {} app", "Tr0ub4dor"),
    ("a password", "curl -s -u me:{} https://example.com", "Tr0ub4dor"),
    ("a password", "sshpass -p {} ssh host", "Tr0ub4dor"),
    ("a password", "Server=db;Password={};Timeout=5", "Tr0ub4dor"),
    ("a password hash", "root:{}:19000:0:99999:7:::", "$6$abcdefgh$0123456789abcdefghijklmn./x"),
    ("a token or key", "AccountKey={};EndpointSuffix=x", "abc123def456=="),
    ("a token or key", "  data:\n    clientsecret: {}", "c2VjcmV0MTIz"),
    ("a password", "machine example.com login me password {}", "Tr0ub4dor"),
]
STAYS = [
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "id 550e8400-e29b-41d4-a716-446655440000",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    '<img src="data:image/png;base64,' + base64.b64encode(bytes(range(256)) * 8).decode() + '">',
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@host",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "-rw-r--r-- 1 me me 12 sk-spinner-three-bounce-and-more-of-it.css",
    "task-management-system-2024-final-version disk-usage-report-20241103 ask-me-anything-4",
    "secret_token.py:12:    password = read_password()",
    "src/auth/token.py:120:def token(value: str) -> Token:",
    "tests/test_token.py::test_password_is_hidden[case1] PASSED",
    "MAX_TOKENS=4096 max_tokens: 4096, tokens=12345678",
    "password = get_password(user)",
    "token: str = field(default=None)",
    "connect(user=user, password=password, token=args.token)",
    "password=$DB_PASSWORD api_key=${API_KEY} token: <your-token-1> secret={{ secret1 }}",
    "PASSWORD=******** API_KEY=xxxxxxxx TOKEN=",
    "Enter password: ",
    "password: must have 8 characters",
    "The secret: it is not known. Password=None; token=null; password: true",
    "http://localhost:8080/@scope/package https://example.com/a:b@c",
    "docker://nginx:1.27@sha256:0123456789abcdef",
    "postgres://user:${PASSWORD}@host/db postgres://user:<password>@host postgres://u:***@h",
    "scp me@host:/var/log/app.log git@example.com:me/x.git",
    "docker run -u www-data:www-data nginx; curl -s https://example.com:443/x",
    "costs $5$ and $6$ a piece",
    "Authorization: Bearer $TOKEN",
    "bearer authentication is required",
    "TOKEN_PATH=/run/secrets/token1 SECRET_FILE=./a1/b PASSWORD_URL=https://example.com/1",
    "KEYBOARD=us-intl1 key: abc123def key = 12ab34cd MONKEY=abcd1234",
    "token_type: bearer1 api_key_id=abc123def",
    "PWD=/home/me/p4ssw0rd",
    "export SSH_KEY=~/.ssh/id; export MY_KEY=$(pass key); export KEYBOARD=dvorak; set -e KEYS abcd",
    'BEGIN = b"-----BEGIN PRIVATE KEY-----"\ndef f(): ...\nEND = b"-----END PRIVATE KEY-----"',
    "Token: '#d0d0d0', # background",
    "eyJub3QiOiJhIHRva2VuIn0 and nothing more",
    "pypi-mirror-for-the-whole-company-2024 npm_config_registry hf_hub_download",
]

plain = Masker({})


@pytest.mark.parametrize(("label", "token"), TOKENS)
@pytest.mark.parametrize(
    "around", ["{}", "a {} b", '{{"x": "{}"}}', "X='{}'", "\x1b[31m{}\x1b[0m", "(\\n{}\\n)", "<{}>"]
)
def test_a_token_gives_itself_away(label: str, token: str, around: str) -> None:
    masked = plain.mask(around.format(token))
    assert masked.found == (label,)
    name = label.partition(" ")[2]
    assert masked.text.replace("\x1b[31m", "").replace("\x1b[0m", "") == around.format(
        f"[secret: {name}]"
    ).replace("\x1b[31m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize(("label", "line", "secret"), IN_PLACE)
def test_text_around_a_secret_stays(label: str, line: str, secret: str) -> None:
    masked = plain.mask(f"before\n{line.format(secret)}\nafter\n")
    shown = line.format(f"[secret: {label.partition(' ')[2]}]")
    assert masked == MaskedText(f"before\n{shown}\nafter\n", (label,))


@pytest.mark.parametrize("text", STAYS)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert plain.mask(text) == MaskedText(text)


def test_a_truncated_key_is_masked() -> None:
    lines = PEM.splitlines(keepends=True)
    head, tail = "".join(lines[:3]), "".join(lines[2:])
    assert plain.mask(f"$ head -3 key\n{head}and more").text == (
        "$ head -3 key\n[secret: private key]and more"
    )
    assert plain.mask(f"$ tail -3 key\n{tail}\nthe end").text == (
        "$ tail -3 key\n[secret: private key]\nthe end"
    )


ENVIRONMENT = {
    "OPENAI_API_KEY": "zq-12-not-a-known-shape",
    "MY_PASSWORD": 'with "quotes" & $signs\\',
    "DEPLOY_SECRET": "first line 1\nsecond line 2",
    "DATABASE_URL": "postgres://me:Tr0ub4dor3@db/app",
    "GITHUB_TOKEN": f"ghp_{MIXED[:36]}",
}
masker = Masker(ENVIRONMENT, also=["1234-also-me"])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("key zq-12-not-a-known-shape.", "the value of OPENAI_API_KEY"),
        ("xxzq-12-not-a-known-shapexx", "the value of OPENAI_API_KEY"),
        ("zq-12-\x1b[1;31mnot\x1b[0m-a-known-shape", "the value of OPENAI_API_KEY"),
        ("OPENAI_API_KEY=zq-12-not-a-known-shape", "the value of OPENAI_API_KEY"),
        (f"token ghp_{MIXED[:36]}", "the value of GITHUB_TOKEN"),
        (json.dumps(ENVIRONMENT["MY_PASSWORD"]), "the value of MY_PASSWORD"),
        (shlex.quote(ENVIRONMENT["MY_PASSWORD"]), "the value of MY_PASSWORD"),
        ('x="with \\"quotes\\" & \\$signs\\\\"', "the value of MY_PASSWORD"),
        (quote(ENVIRONMENT["MY_PASSWORD"], safe=""), "the value of MY_PASSWORD"),
        ("> first line 1\r\nsecond line 2", "the value of DEPLOY_SECRET"),
        ("Tr0ub4dor3", "the password in DATABASE_URL"),
        (
            base64.b64encode(b"zq-12-not-a-known-shape\n").decode(),
            "the value of OPENAI_API_KEY",
        ),
        ("1234-also-me", "a known secret"),
    ],
)
def test_the_secrets_of_the_environment_are_known(text: str, label: str) -> None:
    masked = masker.mask(text)
    assert masked.found == (label,)
    assert "[secret: " in masked.text
    assert not any(value in masked.text for value in ENVIRONMENT.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEY", "short12"),
        ("API_KEY", "changeme"),
        ("API_KEY", "Some Plain words"),
        ("SSH_KEY", "/home/me/.ssh/id_ed25519"),
        ("SSH_KEY", "~/.ssh/id_1"),
        ("TOKEN_LIFETIME_SECRET", "3600.00000"),
        ("SECRET_URL", "https://example.com/secret1"),
        ("AUTH_KEY", "https://example.com/secret1"),
        ("PWD", "/srv/abc123def"),
        ("TOKENIZERS_PARALLELISM", "value-12345"),
        ("KEYBOARD_LAYOUT", "value-12345"),
        ("EDITOR", "value-12345"),
    ],
)
def test_what_is_no_secret_of_the_environment_stays(name: str, value: str) -> None:
    assert Masker({name: value}).mask(f"it is {value}, as it was").found == ()


def test_a_found_secret_is_reported_once_without_its_value() -> None:
    key = ENVIRONMENT["OPENAI_API_KEY"]
    masked = masker.mask(f"{key} {key}\n{PEM}\n{key} postgres://a:b12@h")
    assert masked.found == (
        "the value of OPENAI_API_KEY",
        "a private key",
        "a password in a URL",
    )
    assert masked.text == (
        "[secret: OPENAI_API_KEY] [secret: OPENAI_API_KEY]\n[secret: private key]\n"
        "[secret: OPENAI_API_KEY] postgres://a:[secret: password in a URL]@h"
    )


pieces = st.one_of(
    st.sampled_from([token for _, token in TOKENS]),
    st.sampled_from([line.format(secret) for _, line, secret in IN_PLACE]),
    st.sampled_from(STAYS),
    st.sampled_from([*ENVIRONMENT.values(), *(f"{name}=" for name in ENVIRONMENT)]),
    st.sampled_from(
        ["[secret: OPENAI_API_KEY]", "[secret: ", "]", "\x1b[31m", "\x1b[0m", "\n", '"']
    ),
    st.text(max_size=12),
)
texts = st.lists(pieces, max_size=12).map("".join)


@given(texts)
def test_masking_twice_changes_nothing(text: str) -> None:
    masked = masker.mask(text)
    assert masker.mask(masked.text).text == masked.text
    assert bool(masked.found) == (masked.text != text)


@given(
    before=texts,
    after=texts,
    # With a digit, which no mask has: a part of a mask cannot be masked.
    value=st.text(st.characters(min_codepoint=33, max_codepoint=0x17F), min_size=8).map(
        "7".__add__
    ),
    wrapped=st.sampled_from(["{}", "'{}'", '"{}"', "\x1b[1m{}\x1b[0m", "<{}>", "KEY={}\n"]),
    at=st.integers(1, 7),
)
def test_a_known_secret_never_survives(
    before: str, after: str, value: str, wrapped: str, at: int
) -> None:
    assume(not {"[", "]"} & set(value))
    knowing = Masker({}, also=[value])
    for printed in (value, f"{value[:at]}\x1b[31m{value[at:]}"):
        masked = knowing.mask(before + wrapped.replace("{}", printed) + after)
        assert value not in masked.text
        assert value not in re.sub(r"\x1b\[[0-9;]*m", "", masked.text)


@given(
    st.text(
        st.sampled_from("sk-ant_eyJ.AKIA://:@=\"' \n\tpassword\x1b[m-----BEGINPRIVATEKY"),
        max_size=400,
    )
)
def test_any_text_can_be_masked(text: str) -> None:
    masked = masker.mask(text)
    assert masker.mask(masked.text).text == masked.text
