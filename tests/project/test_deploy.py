"""The files, keys, metrics and timeouts that deploy/ mentions exist."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from brim import config
from brim.config import Config, GatewayConfig
from brim.gateway.asgi import create_app
from brim.gateway.records import RequestRecord

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
THEIRS = {"OPENAI_API_KEY", "STORE_PASSWORD"}
"""Variables that are not brim's own settings."""


def read(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def read_compose_file() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read("compose.yaml"))
    return found


def load_config(**environment: str) -> Config:
    """Return the configuration of a gateway in deploy/."""
    return config.load(
        user=DEPLOY / "brim.toml",
        project=None,
        environment=environment,
        flags={},
        trusted=lambda *_: False,
    ).config


def test_the_settings_of_containers_are_settings_of_brim() -> None:
    given = read_compose_file()["services"]["brim-1"]["environment"]
    own = {name: "redis://store" for name in given if name not in THEIRS}
    own |= dict(re.findall(r"(BRIM_GATEWAY__\w+)=(\S+)", read("Dockerfile")))
    gateway = load_config(**own).gateway
    assert gateway.store == "redis://store"
    assert gateway.host == "0.0.0.0"
    assert gateway.require_keys, "it is reached from other machines before the first key is made"


def test_a_gateway_has_enough_time_to_stop() -> None:
    gateway = load_config().gateway
    takes = gateway.drain_seconds + gateway.stop_seconds
    services = read_compose_file()["services"]
    units = dict(re.findall(r"^(\w+)=(.*)$", read("brim.service"), re.MULTILINE))
    assert int(units["TimeoutStopSec"]) > takes
    for name in ("brim-1", "brim-2", "balancer"):
        assert int(services[name]["stop_grace_period"].rstrip("s")) > takes


def test_load_balancers_and_prometheus_use_the_names_of_the_gateways() -> None:
    gateways = {
        f"{name}:8484" for name in read_compose_file()["services"] if name.startswith("brim-")
    }
    assert set(re.findall(r"^ +server \w+ (\S+)", read("haproxy.cfg"), re.MULTILINE)) == gateways
    assert set(re.findall(r"^ +server (\S+)", read("nginx.conf"), re.MULTILINE)) == gateways
    (scraped,) = yaml.safe_load(read("prometheus.yml"))["scrape_configs"]
    assert set(scraped["static_configs"][0]["targets"]) == gateways


def test_every_mounted_or_copied_file_exists() -> None:
    services = read_compose_file()["services"].values()
    mounted = [volume for each in services for volume in each.get("volumes", ())]
    named = [volume.split(":")[0] for volume in mounted if volume.startswith(".")]
    assert named
    assert all((DEPLOY / name).is_file() for name in named)
    lines = re.findall(r"^COPY (?!--)(.*) \S+$", read("Dockerfile"), re.MULTILINE)
    copied = [name for line in lines for name in line.split()]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    assert {f"!{name}" for name in copied} <= set(read("Dockerfile.dockerignore").splitlines())


def test_the_image_has_the_packages_of_both_stores() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.search(r"/brim\[(.*?)\]", read("Dockerfile"))
    assert found is not None
    extras = found[1].split(",")
    assert {"gateway", "postgres", "redis"} <= set(extras)
    assert set(extras) <= project["optional-dependencies"].keys()


def test_every_required_variable_is_in_the_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", read("compose.yaml")))
    assert wanted <= set(re.findall(r"^(\w+)=", read("env.example"), re.MULTILINE))


def test_alerts_use_existing_metrics_and_error_codes() -> None:
    gateway = create_app(Config(), {}).gateway
    metrics = {family.name for family in gateway.metrics.snapshot()}
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/brim/gateway").glob("*.py")
    )
    rules = [rule["expr"] for rule in yaml.safe_load(read("alerts.yml"))["groups"][0]["rules"]]
    for name in re.findall(r"brim_\w+", " ".join(rules)):
        assert re.sub("_(total|bucket)$", "", name) in metrics, name
    for code in re.findall(r'code="(\w+)"', " ".join(rules)):
        assert f'"{code}"' in sources, code


def test_no_load_balancer_sends_a_request_twice() -> None:
    assert re.search(r"^ +proxy_next_upstream error timeout;$", read("nginx.conf"), re.MULTILINE)
    assert re.search(r"^ +retry-on conn-failure$", read("haproxy.cfg"), re.MULTILINE)


def test_the_dashboard_is_valid_and_uses_existing_metrics_and_labels() -> None:
    written = json.loads(read("grafana-dashboard.json"))
    board = Dashboard.from_json(written)
    assert json.loads(JSONEncoder().encode(board))["title"] == written["title"]
    assert board.panels is not None
    assert len(board.panels) == len(written["panels"])
    app = create_app(Config(gateway=GatewayConfig(require_keys=True)), {})
    record = RequestRecord("/v1/chat/completions", "openai")
    record.code, record.trimmed = "uncountable", {"dropped": 1}
    record.problems.append(("a", "b", "timeout"))
    app.gateway.metrics.add(record)
    known = {family.name: family for family in app.gateway.metrics.snapshot()}
    for panel in written["panels"]:
        for target in panel["targets"]:
            for name, labels in re.findall(r"(brim_\w+)(?:{([^}]*)})?", target["expr"]):
                family = known[re.sub("_(total|bucket)$", "", name)]
                found = {label for sample in family.samples for label in sample.labels}
                if family.samples:
                    assert set(re.findall(r"(\w+)[=!]", labels)) <= found, name
