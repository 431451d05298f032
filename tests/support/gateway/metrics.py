"""The metrics that a gateway serves, as numbers."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway.process import Running


class Numbers:
    """A scrape, with values by name and labels."""

    def __init__(self, written: str) -> None:
        self.families = list(text_string_to_metric_families(written))
        self._samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with these labels."""
        found = (
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
        return sum(found)

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self._samples if sample.name == name}


def read_metrics(server: Running) -> Numbers:
    answer = httpx.get(f"{server.url}/metrics").raise_for_status()
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Numbers(answer.text)
