"""Fitter and Counter: picklable functions that map a batch of rows to the same rows.

An engine runs them on batches of any size and on any worker: a row's result depends on nothing but
the row and the options. What both load, such as vocabularies, is loaded once per process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Unpack, cast

from brim.batch.shapes import (
    BODY_COLUMNS,
    TURN_COLUMNS,
    Body,
    Row,
    Shape,
    detect_shape,
    find_shape,
)
from brim.batch.tables import Batch, count_rows, read_columns, write_columns
from brim.errors import BudgetError, ContextOverflowError, InputError, UnknownTokenizerError
from brim.fitting.api import ConversationFitter, FitOptions, count
from brim.fitting.plan import get_overflow_plan
from brim.fitting.policies import resolve_policy
from brim.tokens import counter_for
from brim.wire.template_source import find_rules

if TYPE_CHECKING:
    from brim.fitting.plan import Plan
    from brim.tokens import Tokenizer

OnError = Literal["column", "raise"]
ERROR: Final = "brim_error"
"""The column with the reason why a row was not fitted; empty for other rows."""
TOKENS: Final = "brim_tokens"


class FitterOptions(FitOptions, total=False):
    """The options of `Fitter`."""

    shape: str | Shape | None
    column: str | None
    mapping: Mapping[str, str] | None
    on_error: OnError


@dataclass(slots=True)
class RowResult:
    """The result for one row."""

    row: Row
    """The row with the fitted conversation; the given row after an error."""
    numbers: Sequence[int]
    """The values of the stage's columns before `brim_error`."""
    error: Exception | None = None
    plan: Plan | None = None

    @property
    def message(self) -> str:
        """The text for `brim_error`."""
        error = self.error
        if error is None or isinstance(error, InputError | ContextOverflowError):
            return "" if error is None else str(error)
        return f"{type(error).__name__}: {error}"


class Stage(ABC):
    """Maps a batch of rows to the same rows in the same order, with further columns."""

    columns: ClassVar[tuple[str, ...]]
    """The columns with numbers; `brim_error` follows them."""

    def __init__(
        self,
        shape: str | Shape | None = None,
        column: str | None = None,
        mapping: Mapping[str, str] | None = None,
        on_error: OnError = "column",
    ) -> None:
        self.shape: Shape | None = (
            find_shape(shape, column, mapping) if shape is None or isinstance(shape, str) else shape
        )
        """The shape of all rows; None until it is detected from the first ones."""
        self.column = column
        self._on_error = on_error

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its conversations processed."""
        if isinstance(batch, list):
            return cast("Batch", [self.add_columns(result) for result in self.process(batch)])
        return self.process_table(batch)

    def process_table(
        self,
        batch: Batch,
        shape: Shape | None = None,
        record: Callable[[RowResult], None] = lambda _: None,
    ) -> Batch:
        """Return a batch that is not a list with its conversations processed.

        `record` is called with each result.
        """
        read = read_columns(batch, partial(self.choose_columns, shape=shape))
        rows = [dict(zip(read, cells, strict=True)) for cells in zip(*read.values(), strict=True)]
        done: list[Row] = []
        written: dict[str, list[Any]] = {name: [] for name in (*self.columns, ERROR)}
        for result in self.process(rows or [{}] * count_rows(batch), shape):
            record(result)
            done.append(result.row)
            for name, value in zip(written, (*result.numbers, result.message), strict=True):
                written[name].append(value)
        changed: dict[str, list[Any]] = {}
        for name, given in read.items():
            cells = [row[name] for row in done]
            if any(map(is_not, cells, given)):
                changed[name] = cells
        return write_columns(batch, {**changed, **written})

    def choose_columns(self, available: Iterable[str], shape: Shape | None = None) -> list[str]:
        """Return the columns of a table that the stage reads, or that it would read if they fit."""
        names, shape = list(map(str, available)), shape or self.shape
        if shape is not None:
            return shape.columns(names)
        known = BODY_COLUMNS.union(TURN_COLUMNS, (self.column,))
        return [name for name in names if name in known]

    def process(self, rows: Sequence[Row], shape: Shape | None = None) -> Iterator[RowResult]:
        """Yield the results for rows; raise `InputError` if their shape is unknown."""
        if rows and shape is None:
            shape = self.shape = self.shape or detect_shape(rows, self.column)
        for row in rows:
            yield self.process_row(row, cast("Shape", shape))

    def process_row(self, row: Row, shape: Shape) -> RowResult:
        """Return the result for a row; its error is raised only if the options say so."""
        body: Body | None = None
        try:
            body = shape.read(row)
            return self._process_body(row, body, shape)
        except Exception as error:
            if self._on_error == "raise" or isinstance(error, UnknownTokenizerError):
                raise
            if isinstance(error, BudgetError) and body is not None and "model" not in body:
                raise  # the option is missing, not a field of the row
            return self._reject(row, _to_row_error(error))

    @abstractmethod
    def _process_body(self, row: Row, body: Body, shape: Shape) -> RowResult: ...

    def _reject(self, row: Row, error: Exception) -> RowResult:
        plan = get_overflow_plan(error) if isinstance(error, ContextOverflowError) else None
        size = plan.size_before if plan is not None else 0
        numbers = [size if name.startswith(TOKENS) else 0 for name in self.columns]
        return RowResult(row, numbers, error, plan)

    def reject(self, error: InputError) -> RowResult:
        """Return the result for a row that could not even be parsed."""
        return self._reject({}, error)

    def add_columns(self, result: RowResult) -> Row:
        """Return the row of a result with its columns; a list has none unless there is an error."""
        row = result.row
        if not isinstance(row, Mapping):
            if result.error is None:
                return row
            row = {"messages": row}
        numbers = zip(self.columns, result.numbers, strict=True)
        return {**row, **dict(numbers), ERROR: result.message}


def _to_row_error(error: Exception) -> Exception:
    if isinstance(error, RecursionError):
        return InputError("The JSON is nested too deeply.")
    return error


class Fitter(Stage):
    """Fits the conversations of a batch, with the options of `brim.fit`.

    The shape is detected from the first rows, unless its name, a column, or a mapping from `role`,
    `content` and OpenAI's roles to the row's own names is given. The rows get the columns
    `brim_tokens_before`, `brim_tokens`, `brim_dropped`, `brim_clipped` (messages) and `brim_error`.
    A row that cannot be fitted stays as it is, and `brim_error` has the reason; with
    `on_error="raise"` it is raised.
    """

    columns = ("brim_tokens_before", TOKENS, "brim_dropped", "brim_clipped")

    def __init__(
        self,
        *,
        shape: str | Shape | None = None,
        column: str | None = None,
        mapping: Mapping[str, str] | None = None,
        on_error: OnError = "column",
        **options: Unpack[FitOptions],
    ) -> None:
        super().__init__(shape, column, mapping, on_error)
        self.options = options
        self._fitter = ConversationFitter(options)
        _check_options(options)

    def _process_body(self, row: Row, body: Body, shape: Shape) -> RowResult:
        request = self._fitter.fit(body)
        plan = request.plan
        outcomes = plan.outcome_counts()
        dropped = outcomes.pop("dropped", 0)
        numbers = plan.before, plan.tokens, dropped, sum(outcomes.values())
        return RowResult(shape.write(row, body, request), numbers, plan=plan)


class Counter(Stage):
    """Counts the conversations of a batch.

    The rows get the columns `brim_tokens` and `brim_error`; the shape is found as by `Fitter`.
    """

    columns = (TOKENS,)

    def __init__(
        self,
        *,
        model: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        tokenizer: Tokenizer | str | None = None,
        shape: str | Shape | None = None,
        column: str | None = None,
        mapping: Mapping[str, str] | None = None,
        on_error: OnError = "column",
    ) -> None:
        super().__init__(shape, column, mapping, on_error)
        self._model, self._tools, self._tokenizer = model, tools, tokenizer

    def _process_body(self, row: Row, body: Body, shape: Shape) -> RowResult:  # noqa: ARG002
        tokens = count(body, model=self._model, tools=self._tools, tokenizer=self._tokenizer)
        return RowResult(row, (int(tokens),))


def _check_options(options: FitOptions) -> None:
    """Raise `InputError` for options that are invalid for every row."""
    resolve_policy(options.get("policy", "steady"))
    if (template := options.get("template")) is not None:
        find_rules(template)
    counter_for(options.get("model"), tokenizer=options.get("tokenizer"))
