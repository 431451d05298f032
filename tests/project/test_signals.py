"""The tests also pass in a background job, which ignores signals from the keyboard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SELECTED = (
    "tests/shell/test_shell_answers.py::test_ctrl_c_keeps_the_partial_reply",
    "tests/providers/test_sync.py::test_ctrl_c_cancels_the_task_and_keeps_the_portal",
    "tests/shell/test_terminal.py::test_an_interrupt_of_brim_is_forwarded_to_the_command",
    "tests/shell/test_terminal.py::test_closing_hangs_up_the_jobs",
)


def test_tests_that_send_signals_pass_where_signals_are_ignored() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTED]
    done = subprocess.run(
        ["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", *command],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
