"""`brim fit` on data sets: options, progress and summary; `brim.batch` does the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial, wraps
from itertools import combinations, islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import click

from brim import __version__
from brim.cli.options import FILE, number_option
from brim.fitting.text_tables import format_count

if TYPE_CHECKING:
    from brim.batch.byte_streams import InputFile
    from brim.batch.input_files import Format, Source
    from brim.batch.run import Engine, Run, RunProgress, Shard, Task
    from brim.batch.tally import Tally

Command = TypeVar("Command", bound=Callable[..., Any])
_FORMATS: Final = click.Choice(("jsonl", "json", "parquet", "arrow"))
_SHAPES: Final = click.Choice(("messages", "body", "sharegpt", "lmsys"))


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The options that only data sets have."""

    shape: str | None
    column: str | None
    mapping: Mapping[str, str] | None
    columns: bool
    input_format: Format | None
    output_format: Format | None
    resume: bool
    shard: Shard | None
    report: str | None
    jobs: int | None
    engine: Literal["local", "ray"]
    address: str | None


def dataset_options(command: Command) -> Command:
    """Add the options of data sets, which the command gets as one argument `dataset`."""

    @wraps(command)
    def wrapped(**given: Any) -> Any:
        own = {each.name: given.pop(each.name) for each in fields(DatasetOptions)}
        return command(**given, dataset=DatasetOptions(**own))

    added: Any = wrapped
    options: tuple[Callable[[Any], Any], ...] = (
        click.option("--shape", type=_SHAPES, help="Shape of the rows.  [default: detected]"),
        click.option("--column", metavar="NAME", help="Column of the conversation."),
        click.option(
            "--mapping",
            metavar="NAME=NAME,...",
            callback=_parse_mapping,
            help="Names of role, content and the roles: role=speaker,content=text,user=client.",
        ),
        click.option(
            "--columns/--no-columns",
            default=True,
            help="Add columns to the rows; without them, only brim_error to rows with errors.",
        ),
        click.option("--input-format", type=_FORMATS, help="[default: by extension or content]"),
        click.option("--output-format", type=_FORMATS, help="[default: by extension or input]"),
        click.option("--resume", is_flag=True, help="Continue after the last complete row."),
        click.option(
            "--shard",
            metavar="I/N",
            callback=_parse_shard,
            help="Process only the I-th of N parts: every N-th row, or file of a folder.",
        ),
        click.option("--report", metavar="FILE", help="Write an HTML report."),
        number_option("-j", "--jobs", help="Number of processes.  [default: one per core]"),
        click.option("--engine", type=click.Choice(("local", "ray")), default="local"),
        click.option("--address", metavar="ADDRESS", help="Ray cluster.  [default: a local one]"),
    )
    for option in reversed(options):
        added = option(added)
    return cast("Command", added)


def _parse_mapping(
    context: click.Context, option: click.Parameter, text: str | None
) -> dict[str, str] | None:
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise click.BadParameter(f"{text!r} is not NAME=NAME,...", context, option)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _parse_shard(context: click.Context, option: click.Parameter, text: str | None) -> Shard | None:
    from brim.batch.run import Shard

    if text is None:
        return None
    number, _, total = text.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise click.BadParameter(f"{text!r} is not I/N with 1 ≤ I ≤ N.", context, option)
    return Shard(int(number), int(total))


def open_document(files: Sequence[str], dataset: DatasetOptions) -> InputFile | None:
    """Return the text file if there is only one; None for folders, tables and several files."""
    from brim.batch.byte_streams import InputFile
    from brim.batch.input_files import find_files, find_kind, open_file

    kind = find_kind(files[0])
    is_table = kind is not None and kind.is_table and dataset.input_format is None
    if is_table or dataset.input_format in ("parquet", "arrow"):
        return None
    if len(files) > 1 or find_files(files[0]) != list(files):
        return None
    context = click.get_current_context()
    if files[0] == "-":
        file = InputFile(sys.stdin.buffer)
    else:
        file = InputFile(context.with_resource(open_file(files[0])), files[0])
    context.meta[FILE] = file.name
    return file


def fit_dataset(
    files: Sequence[str],
    options: Mapping[str, Any],
    dataset: DatasetOptions,
    output: str | None,
    plans: str | None,
    document: InputFile | None,
) -> None:
    """Fit all rows, and end the command with the exit code of their errors."""
    from brim.batch import Fitter
    from brim.batch.chunks import Job
    from brim.batch.input_files import measure_file
    from brim.batch.run import WHOLE, Run, find_tasks

    click.get_current_context().meta.pop(FILE, None)  # errors name one of several files
    shard = dataset.shard or WHOLE
    tasks, folder = find_tasks(files, output, dataset.output_format, shard)
    _check_files(tasks, output, plans, dataset.report, resume=dataset.resume)
    stage = Fitter(shape=dataset.shape, column=dataset.column, mapping=dataset.mapping, **options)
    job = Job(stage, plans is not None, dataset.columns)
    sizes = {task.name: measure_file(task.name) for task in tasks if task.name != "-"}
    run = Run(
        job,
        tasks,
        partial(_open_source, document=document, format=dataset.input_format),
        shard=WHOLE if folder else shard,
        plans=plans,
        sizes={} if None in sizes.values() else sizes,  # type: ignore[arg-type]
    )
    display = Display(run)
    earlier = _keep_checkpoint(run, options, dataset, output, folder)
    tally = display.follow(_choose_engine(dataset), earlier, is_resumable=output not in (None, "-"))
    if dataset.report is not None:
        from brim.batch.report import write_report

        write_report(dataset.report, tally, options.get("model"), dict(options))
    if tally.overflowed or tally.unreadable:
        click.get_current_context().exit(3 if tally.overflowed else 2)


def _open_source(name: str, *, document: InputFile | None, format: Format | None) -> Source:
    from brim.batch.input_files import TextSource, find_text_format, open_source

    if document is None:
        return open_source(name, format)
    return TextSource(document, format or find_text_format(document))


def _check_files(
    tasks: Sequence[Task],
    output: str | None,
    plans: str | None,
    report: str | None,
    *,
    resume: bool,
) -> None:
    """Raise UsageError for contradictory files, and an error if no report can be written."""
    from brim.batch.input_files import is_remote
    from brim.batch.outputs import check_output

    if resume and (output in (None, "-") or any(map(is_remote, filter(None, (output, plans))))):
        raise click.UsageError("--resume needs a data set, and -o and --plan on this machine.")
    written = {*(task.target for task in tasks), plans, report}
    for path in (Path(name) for name in written if name and not is_remote(name)):
        if any(
            path.exists() and Path(task.name).exists() and path.samefile(task.name)
            for task in tasks
        ):
            raise click.UsageError(f"{path} is the input file.")
    names = {"-o": output, "--plan": plans, "--report": report}
    for first, second in combinations(filter(names.get, names), 2):
        if names[first] == names[second]:
            raise click.UsageError(f"{first} and {second} name the same file.")
    if report is not None:
        check_output(report)


def _keep_checkpoint(
    run: Run,
    options: Mapping[str, Any],
    dataset: DatasetOptions,
    output: str | None,
    folder: str | None,
) -> Tally:
    """Return the tally of earlier runs; outputs that are no files have no checkpoint."""
    from brim.batch.input_files import is_remote
    from brim.batch.run import WHOLE, locate_checkpoint
    from brim.batch.tally import Tally

    if output is None or output == "-" or is_remote(output):
        return Tally()
    path = Path(output)
    if path.exists() and not path.is_file() and folder is None:  # a device or a pipe
        return Tally()
    kept = {name: value for name, value in options.items() if value not in (None, ())}
    names = ("shape", "column", "mapping", "columns", "output_format", "shard")
    kept |= {name: getattr(dataset, name) for name in names}
    checkpoint = locate_checkpoint(output, dataset.shard or WHOLE, is_folder=folder is not None)
    return run.keep_checkpoint(checkpoint, {**kept, "brim": __version__}, resume=dataset.resume)


def _choose_engine(dataset: DatasetOptions) -> Engine:
    if dataset.engine == "ray":
        if dataset.address is not None and dataset.jobs is not None:
            raise click.UsageError("-j is for this machine. Remove it, or --address.")
        from brim.batch.byte_streams import require

        require("ray", "ray")
        from brim.integrations import ray

        return partial(ray.process_chunks, address=dataset.address, processes=dataset.jobs)
    if dataset.address is not None:
        raise click.UsageError("--address needs --engine ray.")
    from brim.batch.workers import count_cores, process_chunks

    return partial(process_chunks, processes=dataset.jobs or count_cores())


class Display:
    """Standard error of a run: shapes, errors, a progress line on a terminal, and the summary."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._start = self._shown = monotonic()
        self._live = sys.stderr.isatty()
        self._shapes = self._examples = 0

    def follow(self, engine: Engine, earlier: Tally, *, is_resumable: bool) -> Tally:
        """Carry out the run and show it; return the tally with the earlier rows."""
        from brim.batch.tally import Tally

        run, total = self._run, Tally()
        total.add(earlier)
        try:
            with closing(run.results(engine)) as results:
                for progress in results:
                    self._show(progress)
        except KeyboardInterrupt:
            rows = earlier.rows + run.tally.rows
            hint = " Run the same command with --resume to continue." if is_resumable else ""
            self._say(f"brim: Stopped after {format_count(rows, 'row')}.{hint}")
            raise
        total.add(run.tally)
        self._summarize(total, earlier)
        return total

    def _show(self, progress: RunProgress) -> None:
        run = self._run
        for shape in islice(run.shapes, self._shapes, None):
            self._say(f"shape: {shape}")
        self._shapes = len(run.shapes)
        for text in run.tally.examples[self._examples :]:
            self._say(text)
        self._examples = len(run.tally.examples)
        now = monotonic()
        if self._live and now - self._shown > 0.1:
            self._shown = now
            click.echo(f"\r\x1b[K{self._describe(progress, now)}", err=True, nl=False)

    def _describe(self, progress: RunProgress, now: float) -> str:
        seconds, rows = now - self._start, progress.tally.rows
        text = f"{format_count(rows, 'row')}, {rows / seconds:,.0f} rows/s"
        if not progress.share:
            return text
        left = round(seconds * (1 - progress.share) / progress.share)
        hours, minutes = divmod(left // 60, 60)
        return f"{text}, {progress.share:.0%}, {hours}:{minutes:02}:{left % 60:02} left"

    def _summarize(self, total: Tally, earlier: Tally) -> None:
        more = self._run.tally.errors.total() - self._examples
        if more > 0:
            self._say(f"... and {more:,} more")
        model = self._run.job.stage.options.get("model")
        for name, value in total.describe(model):
            self._say(f"{name}: {value}")
        before = f" (with {format_count(earlier.rows, 'existing row')})" if earlier.rows else ""
        self._say(f"{total}{before}")

    def _say(self, text: str) -> None:
        click.echo(f"\r\x1b[K{text}" if self._live else text, err=True)
