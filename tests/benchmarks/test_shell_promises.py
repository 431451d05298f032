"""A small part of `make proof`: a shell that is killed and resumed loses nothing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.promises import shell
from benchmarks.promises.shell_run import KILL_MOMENTS, Figures


def check(figures: Figures, turns: int, kills: int) -> None:
    assert figures.problems == []
    assert figures.turns == turns
    assert figures.rejected == 0
    assert sum(figures.kills.values()) == kills
    assert figures.resumes >= kills
    assert figures.context_checks


def test_a_shell_with_a_real_model_in_512_tokens_survives_its_ends(
    short_weights: Path, tmp_path: Path
) -> None:
    figures = shell.run_with_model(tmp_path, short_weights, turns=4, kills=2)
    check(figures, turns=4, kills=2)


def test_a_shell_that_is_killed_in_every_way_loses_no_turn(tmp_path: Path) -> None:
    figures = shell.run_with_script(tmp_path, turns=14, kills=len(KILL_MOMENTS))
    check(figures, turns=14, kills=len(KILL_MOMENTS))
    assert set(figures.kills.values()) == {1}
    assert figures.commands
    assert figures.proposed
    assert figures.largest > 0.8 * shell.LARGER
    assert 0 < figures.actual <= figures.recorded <= figures.cap
