from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from brim.errors import InputError
from brim.shell.render.status import (
    DROP_ORDER,
    FIELDS,
    TEMPLATE,
    Status,
    parse_template,
    render_status,
    short_number,
)

FULL = Status(
    model="gpt-5-mini",
    used=12_345,
    limit=100_000,
    window=128_000,
    cost=Decimal("0.0213"),
    cwd="~/src/brim",
)


def text(template: str, values: Status = FULL, width: int = 200) -> str:
    return "".join(part[1] for part in render_status(template, values, width))


def test_the_default_status_line() -> None:
    assert text(TEMPLATE) == "gpt-5-mini █▏·······│░░ ~12.3k/100k (~12%) · $0.0213 · ~/src/brim"


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        (TEMPLATE, Status("m", 0), "m ~0"),
        (TEMPLATE, Status("m", 5, 10, 20, is_exact=True), "m ███···│░░░░░ 5/10 (50%)"),
        (TEMPLATE, Status(), "~0"),
        ("{cwd} · {model} | {route}", Status("m"), "m"),
        ("{model} · {cwd} | {route}", Status("m", route="r"), "m · r"),
        ("{model} {cwd} · {route}", Status("m", route="r"), "m · r"),
        (
            "model: {model} dir: {cwd} cost: {cost}",
            Status("m", cost=Decimal(1)),
            "model: m cost: $1.00",
        ),
        ("{ctx_used} tokens · {cost} spent · {model}", Status("m", 7), "~7 tokens · m"),
        ("[{route}/{model}] {cwd}", Status("m", cwd="d"), "[m] d"),
        ("{ctx_used}/{ctx_limit}!", Status("", 9), "~9!"),
        ("brim", Status(), "brim"),
        ("", Status(), ""),
        ("{cost}", Status(cost=Decimal(0), at_least=True), "$?"),
        ("{cost}", Status(cost=Decimal("0.5"), at_least=True), "≥ $0.5000"),
        ("{cwd}", Status(cwd="a\n\x1b[2Jb"), "a ␛[2Jb"),
        ("{cwd}", Status(cwd="x" * 99), "x" * 19 + "…" + "x" * 20),
    ],
)
def test_an_empty_field_is_dropped_with_its_separator(
    template: str, values: Status, expected: str
) -> None:
    assert text(template, values) == expected


def test_an_unknown_field_suggests_the_nearest() -> None:
    near = r"shell.status: \{modle\}\. Did you mean \{model\}\? Use \{model\}, "
    with pytest.raises(InputError, match=near):
        parse_template("{modle}")
    with pytest.raises(InputError, match=r"Use \{model\}, "):
        render_status("{}", FULL, 80)


@pytest.mark.parametrize(
    ("used", "color"),
    [(69, "ansigreen"), (70, "ansiyellow"), (89, "ansiyellow"), (90, "ansired"), (120, "ansired")],
)
def test_the_color_depends_on_the_fill(used: int, color: str) -> None:
    row = render_status("{bar} {ctx_percent}", Status(used=used, limit=100, window=150), 80)
    assert color in row[0][0]
    assert color in row[-1][0]


@pytest.mark.parametrize(
    ("used", "limit", "expected"),
    [
        (0, 100, "·········│░░"),
        (1, 100, "▏········│░░"),
        (50, 100, "████▌····│░░"),
        (100, 100, "█████████│░░"),
        (101, 100, "█████████▶░░"),
        (60, 124, "████▉·····│░"),
    ],
)
def test_the_bar_marks_the_limit(used: int, limit: int, expected: str) -> None:
    assert text("{bar}", Status(used=used, limit=limit, window=125)) == expected


def test_the_least_important_fields_are_dropped_first() -> None:
    widths = [len(text(TEMPLATE, width=width)) for width in range(90)]
    assert all(found <= width for width, found in enumerate(widths))
    assert text(TEMPLATE, width=60) == "gpt-5-mini █▏·······│░░ ~12.3k/100k (~12%) · $0.0213"
    assert text(TEMPLATE, width=45) == "gpt-5-mini ~12.3k/100k (~12%) · $0.0213"
    assert text(TEMPLATE, width=20) == "(~12%) · $0.0213"
    assert text(TEMPLATE, width=8) == "(~12%)"
    assert set(DROP_ORDER) == set(FIELDS)


names = st.text(max_size=30)


@given(
    st.lists(st.sampled_from((*(f"{{{name}}}" for name in FIELDS), " · ", " ", "|", "at", "("))),
    st.builds(
        Status,
        *(names, st.integers(0, 10**7), st.none() | st.integers(0, 10**6)),
        *(st.none() | st.integers(0, 10**7), st.booleans()),
        *(st.none() | st.decimals(0, 10**4, places=6), st.booleans()),
        *(names, names, names, names),
    ),
    st.integers(0, 120),
)
def test_it_never_wraps(pieces: list[str], values: Status, width: int) -> None:
    row = render_status("".join(pieces), values, width)
    made = "".join(part[1] for part in row)
    assert get_cwidth(made) <= width
    assert "\n" not in made


def test_numbers_are_short() -> None:
    given = (0, 999, 9_999, 10_000, 12_345, 128_000, 999_999, 1_047_576, 12_000_000)
    assert [short_number(number) for number in given] == [
        *("0", "999", "9,999", "10k", "12.3k", "128k", "1M", "1.05M", "12M"),
    ]
