"""Check brim's promises on a real server and print the figures.

python -m benchmarks.promises              all promises (half an hour)
python -m benchmarks.promises counts       one of them: counts, near, off, cache or shell
python -m benchmarks.promises --small      a small part of each
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from benchmarks.promises import cache, shell
from benchmarks.promises.counts import compare_counts
from benchmarks.promises.fitting import WINDOWS, Fitting, Tally
from benchmarks.promises.material import Conversation, generate, load_recorded
from benchmarks.promises.progress import progress
from benchmarks.promises.reference_server import TEMPLATE
from brim.fitting.flow import CountMode
from brim.providers.local import LocalServer, download_default
from brim.storage.calibration_store import CalibrationStore


class Promises:
    """The checks; each prints its figures and returns whether the promise holds."""

    def __init__(self, model: Path, folder: Path, small: bool) -> None:
        self._model = model
        self._folder = folder
        self._small = small

    def counts(self) -> bool:
        """The count before sending equals the server's prompt_tokens, in every request."""
        results, most = [], self._scale(30, 360)
        for template in (None, TEMPLATE):
            with LocalServer.start(
                self._model, window=8192, threads=1, template=template
            ) as server:
                comparisons = compare_counts(server, self._conversations_to_send(), self._store())
                with closing(comparisons):
                    for result in islice(comparisons, most // 2):
                        results.append(result)
                        progress(len(results), most)
        kinds = Counter(result.kind for result in results)
        unequal = [result for result in results if not result.equal]
        print(
            f"{len(results)} requests sent: {len(results) - len(unequal)} counted as the server did"
        )
        print("  by kind: " + ", ".join(f"{kind} {number}" for kind, number in kinds.items()))
        for result in unequal:
            print(f"  {result.conversation}: brim {result.brim}, server {result.server}")
        return not unequal

    def near(self) -> bool:
        """With server counts near the limit: nothing rejected, nothing trimmed needlessly."""
        tallies = self._run_fitting("near")
        total = _total(tallies)
        return not (total.over or total.template_errors or total.needless or total.rejected)

    def off(self) -> bool:
        """With estimates alone: less than 0.5 % context-length errors, all recovered."""
        tallies = self._run_fitting("off")
        total = _total(tallies)
        share = total.rejected / max(1, total.requests)
        print(f"  context-length errors: {total.rejected} ({share:.2%}), repeated: {total.lost}")
        return share < 0.005 and not total.lost and not total.template_errors

    def cache(self) -> bool:
        """The prefix cache: tokens evaluated over 60 turns at 2,048, one slot."""
        turns = self._scale(12, cache.TURNS)
        evaluated = {}
        for policy in ("sliding", "steady", "thrift"):
            plain = cache.count_evaluated_tokens(self._model, policy, turns=turns)
            shifted = cache.count_evaluated_tokens(self._model, policy, turns=turns, reuse=64)
            evaluated[policy] = plain
            share = plain / evaluated["sliding"]
            print(
                f"  {policy:8} {plain:7,} tokens, {share:.2f} of sliding; with reuse {shifted:7,}"
            )
        steady, thrift = (evaluated[name] / evaluated["sliding"] for name in ("steady", "thrift"))
        return self._small or (steady <= 0.60 and thrift <= 0.35)

    def shell(self) -> bool:
        """The shell, killed and resumed: no request rejected, no turn lost or sent twice."""
        turns, kills = self._scale(8, 60), self._scale(3, 12)
        real = shell.run_with_model(self._folder / "model", self._model, turns=turns, kills=kills)
        print(
            shell.format_figures("the embedded model", real, shell.SMALL, shell.SMALL), flush=True
        )
        turns, kills = self._scale(60, 1_000), self._scale(5, 20)
        scripted = shell.run_with_script(self._folder / "script", turns=turns, kills=kills)
        print(shell.format_figures("a scripted model", scripted, shell.LARGER, shell.LARGER))
        for problem in (*real.problems, *scripted.problems):
            print(f"  {problem}")
        return not (real.problems or scripted.problems)

    def _run_fitting(self, count_mode: CountMode) -> list[Tally]:
        windows = (512, 1024) if self._small else WINDOWS
        fitting = Fitting(self._model, self._store(), count_mode, windows)
        sends = self._scale(4, 200) if count_mode == "near" else 0
        try:
            fitting.run(self._conversations(), self._scale(80, 2_000), sends)
        finally:
            fitting.close()
        tallies = list(fitting.tallies.values())
        print(
            "  window  requests  over  template errors  needless trims  sent  fill if trimmed"
            "  unfitted rejected"
        )
        for tally in (*tallies, _total(tallies)):
            name = f"{tally.window:,}" if tally.window else "all"
            print(
                f"  {name:>6}  {tally.requests:8,}  {tally.over:4}  {tally.template_errors:15}"
                f"  {tally.needless:14}  {tally.sent:4}  {tally.fill:15.1%}  {tally.naive:17,}"
            )
        return tallies

    def _conversations_to_send(self) -> list[Conversation]:
        """Fewer, because a prompt of thousands of tokens takes this model half a minute."""
        real = [] if self._small else load_recorded()[::4]
        return [*real, *generate(35)]

    def _conversations(self) -> list[Conversation]:
        real = load_recorded()
        return list(chain.from_iterable(zip(generate(4 * len(real)), real * 4, strict=True)))

    def _store(self) -> CalibrationStore:
        return CalibrationStore(self._folder / f"store-{time.monotonic_ns()}.sqlite3")

    def _scale(self, few: int, many: int = 1) -> int:
        return few if self._small else many


PARTS = ("counts", "near", "off", "cache", "shell")


def _total(tallies: Iterable[Tally]) -> Tally:
    total = Tally(0)
    for tally in tallies:
        for name, value in vars(tally).items():
            setattr(total, name, getattr(total, name) + value)
    total.window = 0
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.promises",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="promises to check (default: all)")
    parser.add_argument("--small", action="store_true", help="check a small part of each")
    given = parser.parse_args()
    if unknown := set(given.parts) - {*PARTS}:
        parser.error(f"unknown part: {', '.join(unknown)}. Choose from {', '.join(PARTS)}.")
    model = download_default()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        promises = Promises(model, Path(folder), given.small)
        for part in given.parts or PARTS:
            run: Callable[[], bool] = getattr(promises, part)
            print(f"{part}: {run.__doc__}", flush=True)
            began = time.monotonic()
            if not run():
                failed.append(part)
            print(
                f"  {'FAILED' if part in failed else 'holds'}, {time.monotonic() - began:.0f} s\n",
                flush=True,
            )
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
