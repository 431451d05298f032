"""The Helm chart is valid: `helm` lints and renders it, and Kubernetes accepts the result."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from kubernetes_validate import validate

from brim.config import check_file

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "brim"
HELM = Path(sys.executable).with_name("helm")
EVERYTHING = (
    *("--set", "ingress.enabled=true", "--set", "ingress.tlsSecret=tls"),
    *("--set", "ingress.className=nginx", "--set", "autoscaling.enabled=true"),
    *("--set", "imagePullSecrets[0].name=pull", "--set", "nodeSelector.disk=ssd"),
)

pytestmark = pytest.mark.process


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)


def render(*arguments: str) -> dict[str, dict[str, Any]]:
    """Return the rendered objects by their kind."""
    found = run_helm("template", "team", str(CHART), *arguments)
    assert found.returncode == 0, found.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(found.stdout) if each}


def test_helm_finds_no_problem() -> None:
    found = run_helm("lint", "--strict", str(CHART))
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("arguments", [(), EVERYTHING])
def test_all_objects_are_valid(arguments: tuple[str, ...]) -> None:
    objects = render(*arguments)
    assert len(objects) == (6 if arguments else 4)
    for each in objects.values():
        validate(each, "1.33", strict=True)


def test_a_gateway_has_enough_time_to_stop() -> None:
    objects = render()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    settings = tomllib.loads(objects["ConfigMap"]["data"]["brim.toml"])["gateway"]
    needed = settings["drain_seconds"] + settings["stop_seconds"]
    assert pod["terminationGracePeriodSeconds"] > needed
    probe = pod["containers"][0]["readinessProbe"]
    assert settings["drain_seconds"] > 2 * probe["periodSeconds"] * probe["failureThreshold"]


def test_the_configuration_is_valid() -> None:
    text = render()["ConfigMap"]["data"]["brim.toml"]
    check_file(text.encode(), CHART / "values.yaml")


def test_wrong_values_are_rejected() -> None:
    found = run_helm("template", "team", str(CHART), "--set", "replicaCount=0")
    assert found.returncode != 0
    assert "replicaCount" in found.stderr
