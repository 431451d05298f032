"""Context-length errors: the phrases of all servers as data, and the parser for them.

Every server words this error differently, and most report their numbers only in the text. The text
may be in an error object, in a flat body, in an event of a stream, or in a string inside the error
of a proxy. So a body is searched for the texts of the server itself (echoes of the conversation are
skipped), and each text is matched against the phrases below.

Not detected, because there is no text: a server that silently truncates the prompt, an empty
response, a 400 without a body.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from brim.errors import Overflow

Kind = Literal["window", "rate", "size"]

MAX_BODY: Final = 1 << 20
"""Larger bodies are not parsed; only their beginning is read as text."""
MAX_TEXT: Final = 1 << 16
MAX_EXCERPT: Final = 300
MAX_VALUES: Final = 500
"""Values of a body that are inspected."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One server's wording of the error.

    A regular expression over normalized text (see `_normalize`), in which `<limit>`, `<sent>`,
    `<more>` (a second part of what was sent) and `<output>` are numbers, `<n>` is a number to
    ignore, `<floor>` is an optional "at least", and `…` is up to 200 arbitrary characters.
    """

    server: str
    pattern: str
    kind: Kind = "window"


_CONTEXT = r"maximum context length is <limit>"

PATTERNS_WITH_NUMBERS: Final = (
    Phrase("OpenRouter", _CONTEXT + r"… <sent> of text input(?:, <more> of tool input)?"
        r"…<output> in the output"),
    Phrase("OpenAI, DeepSeek", _CONTEXT + r"… <sent> in (?:the messages|your prompt)"
        r"(?:, <more> in the functions)?…<output> (?:in|for) the completion"),
    Phrase("vLLM", r"is too large <output>…" + _CONTEXT + r"…request has <sent> input tokens"),
    Phrase("vLLM", _CONTEXT + r"…requested <output> output tokens and your prompt contains "
        r"(?:<floor><sent> input tokens|<n> characters)"),
    Phrase("vLLM", r"passed (?:<floor><sent> input tokens|<n> input characters) and requested "
        r"<output> output tokens…context length is only <limit>"),
    Phrase("OpenAI and many", _CONTEXT + r"…(?:resulted in|requested(?: about)?|contains|has) "
        r"<floor><sent>(?: input)? tokens"),
    Phrase("OpenAI, Azure", r"tokens exceed the configured limit of <limit>…resulted in <sent>"),
    Phrase("OpenAI, Azure", r"tokens exceed the configured limit of <limit>"),
    Phrase("Anthropic", r"prompt is too long <sent> tokens > <limit>"),
    Phrase("Anthropic", r"exceed context limit <sent> \+ <output> > <limit>"),
    Phrase("Gemini", r"input token count(?: of)?(?: <sent>)? exceeds the maximum number of "
        r"(?:input )?tokens allowed(?: of)?(?: <limit>)?"),
    Phrase("Vertex", r"input token count is <sent> but the model only supports up to <limit>"),
    Phrase("Mistral", r"prompt contains <sent> tokens…too large for model with <limit> maximum "
        r"context length"),
    Phrase("Cohere", r"too many tokens…cannot exceed <limit>…received <sent>"),
    Phrase("TGI, Together", r"inputs tokens \+ max_new_tokens must be <= <limit>…given <sent> "
        r"inputs tokens and <output> max_new_tokens"),
    Phrase("TGI", r"inputs must have less than <limit> tokens…given <sent>"),
    Phrase("SGLang", r"input <sent> tokens is longer than the models context length <limit>"),
    Phrase("SGLang", r"maximum context length of <limit>…<sent> tokens from the input(?: messages)?"
        r" and <output> tokens for the completion"),
    Phrase("SGLang, Poolside", r"(?:input|prompt) length(?: of)? <sent>(?: tokens)? exceeds the "
        r"maximum (?:allowed )?(?:input )?length(?: of)? <limit>"),
    Phrase("llama.cpp", r"request <sent> tokens exceeds the available context size <limit>"),
    Phrase("llama.cpp", r"input <sent> tokens is too large to process…current batch size <limit>"),
    Phrase("llama-cpp-python", r"requested tokens <sent> exceed context window of <limit>"),
    Phrase("LM Studio", r"n_keep <sent> ?>= ?n_ctx <limit>"),
    Phrase("LM Studio", r"keep the first <sent> tokens…context length of only <limit>"),
    Phrase("xAI", r"maximum prompt length is <limit>(?: tokens)? but the request contains <sent>"),
    Phrase("Cerebras", r"current length is <sent> while limit is <limit>"),
    Phrase("Kimi", r"exceeded model token limit <limit>(?: requested <sent>)?"),
    Phrase("Copilot", r"prompt token count of <sent> exceeds the limit of <limit>"),
    Phrase("Fireworks", r"prompt is too long <sent>, model maximum context length <limit>"),
    Phrase("Docker", r"prompt has <sent> tokens, but the configured context size is <limit>"),
    Phrase("local servers", r"prompt(?: too long)?(?: length)? <sent>(?: tokens)? "
        r"(?:exceeds|is (?:longer|greater|larger) than) (?:the )?max(?:imum|_\w{1,20})"
        r"(?: model length| context length)?(?: of)? <limit>"),
    Phrase("DashScope", r"range of input length should be <n>, ?<limit>"),
    Phrase("GitHub Models", r"request body too large for…max size <limit> tokens"),
    Phrase("anybody", r"exceeds? (?:the )?(?:models? )?maximum context length(?: of)? <limit>"),
    Phrase("anybody", _CONTEXT),
    Phrase("xAI", r"maximum prompt length is <limit>"),
)  # fmt: skip

PATTERNS_WITHOUT_NUMBERS: Final = (
    Phrase("OpenAI, Groq", r"tokens per (?:min|day)…limit <limit>,(?: used <n>,)? requested <sent>",
        "rate"),
    Phrase("OpenAI, Groq", r"request too large for…tokens per (?:min|day)", "rate"),
    Phrase("Anthropic", r"\brequest_too_large\b|request exceeds the maximum (?:allowed )?"
        r"(?:size|number of bytes)", "size"),
    Phrase("Gemini", r"request payload size exceeds the limit", "size"),
    # Short fields (a name, a description) have such a limit too, and trimming does not help.
    Phrase("OpenAI", r"string too long…maximum length (?:\d{5,}|\d{2,3},\d{3}|\d+,\d{3},\d{3})",
        "size"),
    Phrase("Bedrock", r"expected maxlength \d{4,}", "size"),
    Phrase("proxies", r"request entity too large|payload too large|413 content too large", "size"),
    Phrase("codes", r"\bcontext_(?:length|window|size)_exceeded\b|\bcontextwindowexceedederror\b|"
        r"\bexceed_context_size_error\b|\bmodel_max_prompt_tokens_exceeded\b|"
        r"\btokens_limit_reached\b|\bmodel_context_window_exceeded\b|\bprompt_too_long\b"),
    Phrase("OpenAI", r"exceeds? the context window|reduce the length of the messages"),
    Phrase("Anthropic", r"\bprompt (?:is )?too long\b"),
    Phrase("Bedrock", r"input is too long for requested model|too many input tokens|"
        r"number of input tokens exceeds"),
    Phrase("llama.cpp", r"exceeds the available context size|context size has been exceeded"),
    Phrase("Ollama", r"longer than the context length|exceeded (?:max )?context length|"
        r"input length exceeds the (?:maximum )?context length"),
    Phrase("LM Studio", r"greater than the context length"),
    Phrase("SGLang", r"requested token count exceeds the models maximum context length"),
    Phrase("MiniMax", r"context window exceeds limit"),
    Phrase("GLM", r"prompt exceeds max length"),
)  # fmt: skip

GENERIC_PATTERNS: Final = (
    Phrase("anybody", r"\b(?:prompt|input|context|conversation|messages|history)(?: text| length)?"
        r"(?: is| are| was)? too (?:long|large|big)\b"),
    Phrase("anybody", r"\b(?:context|prompt|input)(?: token)? (?:length|window|size|limit|tokens?)"
        r"\b.{0,40}?\b(?:exceed|too long|too large|reached)"),
    Phrase("anybody", r"\b(?:exceed\w{0,3}|(?:longer|larger|greater|more) than)\b.{0,40}?"
        r"\b(?:context|prompt|input|model token) (?:length|window|size|limit|tokens)"),
    Phrase("anybody", r"(?:上下文|输入).{0,12}?超(?:过|出|限)|超(?:过|出).{0,12}?上下文"),
)  # fmt: skip

_OTHER_CAUSE: Final = re.compile(
    r"rate.?limit|quota|credit|billing|balance|throttl|overloaded|time[d ]?.?out|try again|"
    r"per (?:min|hour|day|month)|daily|monthly|image|pixel|audio|video|file|pdf|page|tool|name|"
    r"header|url|stop|template|minimum|max_\w{0,20}tokens|(?:output|completion|thinking|new) tokens"
)
"""Signs that a generic phrase means something else: another limit, or a temporary one."""

_FINISHES: Final = ("model_context_window_exceeded", "model_length")
_FINISH_KEYS: Final = ("finish_reason", "stop_reason", "native_finish_reason")
_TEXT_KEYS: Final = (
    *("code", "type", "__type", "status", "error_type", "error_code", "reason", "param"),
    *("error", "errors", "message", "Message", "msg", "detail", "details", "raw", "body"),
    *("error_message", "error_msg", "errorMessage", "status_msg", "title", "description"),
    *("cause", "exception"),
)
_CONTAINER_KEYS: Final = (
    *("response", "choices", "delta", "metadata", "data", "base_resp", "upstream"),
)
"""Followed only into objects: as text, they contain the model's output."""
_USAGE_KEYS: Final = (
    *("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
)


def parse_overflow(
    status: int | None, body: Mapping[str, Any] | str | bytes | None
) -> Overflow | None:
    """Return the context-length error in a response; None if there is none.

    The body may be that of an error, an event of a stream, or a complete reply whose finish reason
    means it. It may contain anything; nothing is raised.
    """
    if status in (401, 402, 403, 404):
        return None
    given = _decode(body)
    if isinstance(given, str) and status is not None and status < 400:
        return None
    found_texts = _collect_text(given)
    found = _match_fields(found_texts) or _match_patterns(found_texts)
    if found is None and found_texts.finish in _FINISHES:
        return Overflow(None, found_texts.used, text=found_texts.finish)
    if (
        found is None
        and status == 413
        and not any(_OTHER_CAUSE.search(_normalize(text)) for text in found_texts.texts)
    ):
        return Overflow(None, None, kind="size", text=found_texts.excerpt())
    return found


@dataclass(slots=True)
class _ErrorText:
    """The texts and numbers of a response, without echoes of the conversation."""

    texts: list[str] = field(default_factory=list)
    prompt: int | None = None
    window: int | None = None
    finish: str = ""
    used: int | None = None

    def excerpt(self, of: str = "") -> str:
        sentences = (text for text in (of, *self.texts) if " " in text.strip())
        text = " ".join(next(sentences, of)[: 4 * MAX_EXCERPT].split())
        return text if len(text) <= MAX_EXCERPT else text[: MAX_EXCERPT - 1] + "…"


def _collect_text(body: object) -> _ErrorText:
    found_texts = _ErrorText()
    waiting = deque([body])
    room = MAX_TEXT
    for _ in range(MAX_VALUES):
        if not waiting or room <= 0:
            break
        match _decode(waiting.popleft()):
            case str(text):
                found_texts.texts.append(text[:room])
                room -= len(text)
            case Mapping() as value:
                _collect_fields(found_texts, value)
                waiting += [value[key] for key in _TEXT_KEYS if key in value]
                waiting += [
                    value[key]
                    for key in _CONTAINER_KEYS
                    if isinstance(value.get(key), Mapping | list)
                ]
            case list() as values:
                waiting += values[:MAX_VALUES]
    return found_texts


def _collect_fields(found_texts: _ErrorText, value: Mapping[str, Any]) -> None:
    """Collect the numbers and the finish reason that have fields of their own."""
    prompt, window = value.get("n_prompt_tokens"), value.get("n_ctx")
    if _is_count(prompt) and _is_count(window):
        found_texts.prompt, found_texts.window = prompt, window
    for key in _FINISH_KEYS:
        if value.get(key) in _FINISHES:
            found_texts.finish = value[key]
    usage = value.get("usage")
    if isinstance(usage, Mapping):
        counts = [usage[key] for key in _USAGE_KEYS if _is_count(usage.get(key))]
        found_texts.used = sum(counts) if counts else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decode(body: object) -> object:
    """Parse text: JSON into its value, a stream into its events."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body[:MAX_BODY]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    text = body[:MAX_BODY].strip().removeprefix("\ufeff")
    if text.startswith(("{", "[", '"')):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text[:MAX_TEXT]
    if text.startswith(("data:", "event:")):
        lines = text[:MAX_TEXT].splitlines()
        return [line[5:] for line in lines if line.startswith("data:")]
    return text[:MAX_TEXT]


def _match_fields(found_texts: _ErrorText) -> Overflow | None:
    if (
        found_texts.prompt is None
        or found_texts.window is None
        or found_texts.prompt < found_texts.window
    ):
        return None
    return Overflow(found_texts.window, found_texts.prompt, text=found_texts.excerpt())


def _match_patterns(found_texts: _ErrorText) -> Overflow | None:
    plain = [(_normalize(text), text) for text in found_texts.texts]
    for phrase in (*PATTERNS_WITH_NUMBERS, *PATTERNS_WITHOUT_NUMBERS):
        for text, original in plain:
            found = _compile(phrase.pattern).search(text)
            if found and (
                overflow := _build_overflow(phrase, found, found_texts.excerpt(original))
            ):
                return overflow
    if any(_OTHER_CAUSE.search(text) for text, _ in plain):
        return None
    for phrase in GENERIC_PATTERNS:
        for text, original in plain:
            if _compile(phrase.pattern).search(text):
                return Overflow(None, None, text=found_texts.excerpt(original))
    return None


def _build_overflow(phrase: Phrase, found: re.Match[str], text: str) -> Overflow | None:
    parts = found.groupdict()

    def number(name: str) -> int | None:
        digits = parts.get(name)
        return int(re.sub(r"\D", "", digits)) if digits else None

    limit, sent = number("limit"), number("sent")
    if phrase.kind == "rate" and limit is not None and sent is not None and sent <= limit:
        return None  # it fits into another minute
    if sent is not None:
        sent += number("more") or 0
    return Overflow(limit, sent, number("output"), phrase.kind, bool(parts.get("floor")), text)


def _normalize(text: str) -> str:
    """Lower the case, drop quotes, brackets and colons, and resolve nested escapes."""
    text = re.sub(r"\\+", r"\\", text)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = re.sub(r"\\[nrt]|[(){}\[\]:;\s]", " ", text)
    text = re.sub(r"[\\\"'`’*]", "", text)
    return re.sub(r" {2,}", " ", text).lower()


_NUMBER: Final = r"(?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,15})(?![0-9])"


@cache
def _compile(phrase: str) -> re.Pattern[str]:
    """Compile a phrase; the part after each gap is atomic, so that searching is linear."""
    first, *rest = phrase.split("…")
    pattern = first + "".join(f"(?>.{{0,200}}?{part})" for part in rest)
    pattern = re.sub(r"<(limit|sent|more|output)>", rf"(?P<\1>{_NUMBER})", pattern)
    pattern = pattern.replace("<n>", _NUMBER).replace("<floor>", "(?P<floor>at least )?")
    return re.compile(pattern)
