"""Context-length errors of all servers, and errors that only look similar."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import Overflow
from brim.wire.overflow import MAX_EXCERPT, Kind, load_phrases, parse_overflow

Body = dict[str, Any] | str | bytes | None


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> Body:
    return {"error": {"message": message, "type": kind, "param": "messages", "code": code}}


def anthropic(message: str, kind: str = "invalid_request_error") -> Body:
    return {"type": "error", "error": {"type": kind, "message": message}}


def google(message: str) -> Body:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


EXCEEDED = "context_length_exceeded"
RATE = "rate_limit_exceeded"
OPENAI = "This model's maximum context length is "
TPM = "for gpt-4o in organization org-1 on tokens per min (TPM): Limit "

Numbers = tuple[int | None, int | None, int | None]
"""Limit, sent and output."""

WINDOW: list[tuple[str, int | None, Body, Numbers]] = [
    (
        "openai messages",
        400,
        openai(OPENAI + "8192 tokens. However, your messages resulted in 8227 tokens.", EXCEEDED),
        (8192, 8227, None),
    ),
    (
        "openai with commas",
        400,
        openai(OPENAI + "128,000 tokens. However, your messages resulted in 1,130,452 tokens."),
        (128_000, 1_130_452, None),
    ),
    (
        "openai messages and completion",
        400,
        openai(
            OPENAI + "4097 tokens. However, you requested 4295 tokens (3245 in the messages, "
            "1050 in the completion). Please reduce the length of the messages or completion.",
            EXCEEDED,
        ),
        (4097, 3245, 1050),
    ),
    (
        "openai messages, functions and completion",
        400,
        openai(
            OPENAI + "16385 tokens. However, you requested 17200 tokens (15000 in the messages, "
            "200 in the functions, and 2000 in the completion).",
            EXCEEDED,
        ),
        (16_385, 15_200, 2_000),
    ),
    (
        "openai legacy completions",
        400,
        openai(
            OPENAI + "4097 tokens, however you requested 4360 tokens (360 in your prompt; 4000 "
            "for the completion). Please reduce your prompt; or completion length."
        ),
        (4097, 360, 4000),
    ),
    (
        "openai responses",
        400,
        openai("Your input exceeds the context window of this model.", EXCEEDED),
        (None, None, None),
    ),
    (
        "openai responses, in a stream",
        200,
        {
            "type": "response.failed",
            "response": {
                "status": "failed",
                "error": {"code": EXCEEDED, "message": "Please adjust your input."},
                "output": [],
            },
        },
        (None, None, None),
    ),
    (
        "openai input cap",
        400,
        openai(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
            "300123 tokens. Please reduce the length of the messages.",
            EXCEEDED,
        ),
        (272_000, 300_123, None),
    ),
    (
        "openai input cap, limit only",
        400,
        openai("Input tokens exceed the configured limit of 272000 tokens."),
        (272_000, None, None),
    ),
    ("openai responses, text only", 400, "Your input exceeds the context window", (None,) * 3),
    ("groq, text only", 400, "Please reduce the length of the messages", (None,) * 3),
    ("any limit", 400, OPENAI + "8192 tokens. Please shorten the prompt.", (8192, None, None)),
    (
        "any limit that is exceeded",
        400,
        "This request exceeds the model's maximum context length of 8,192 tokens.",
        (8192, None, None),
    ),
    ("a code and nothing else", 400, openai("Bad request", EXCEEDED), (None, None, None)),
    (
        "anthropic",
        400,
        anthropic("prompt is too long: 205123 tokens > 200000 maximum"),
        (200_000, 205_123, None),
    ),
    (
        "anthropic with commas",
        400,
        anthropic("prompt is too long: 1,205,123 tokens > 1,000,000 maximum"),
        (1_000_000, 1_205_123, None),
    ),
    (
        "anthropic without numbers",
        400,
        anthropic("Prompt is too long"),
        (None, None, None),
    ),
    (
        "anthropic input and output",
        400,
        anthropic(
            "input length and `max_tokens` exceed context limit: 190402 + 20000 > 200000, "
            "decrease input length or `max_tokens` and try again"
        ),
        (200_000, 190_402, 20_000),
    ),
    (
        "anthropic, in a stream",
        200,
        b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
        b'"message":"prompt is too long: 9 tokens \\u003e 8 maximum"}}\n\n',
        (8, 9, None),
    ),
    (
        "bedrock",
        400,
        {"message": "Input is too long for requested model."},
        (None, None, None),
    ),
    (
        "bedrock, counted",
        400,
        {"__type": "ValidationException", "message": "Too many input tokens"},
        (None, None, None),
    ),
    (
        "bedrock nova",
        400,
        {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length."},
        (None, None, None),
    ),
    (
        "gemini",
        400,
        google(
            "The input token count (1200345) exceeds the maximum number of tokens allowed "
            "(1048576)."
        ),
        (1_048_576, 1_200_345, None),
    ),
    (
        "gemini without what was sent",
        400,
        google("The input token count exceeds the maximum number of tokens allowed 1048576."),
        (1_048_576, None, None),
    ),
    (
        "gemini, in a list",
        400,
        json.dumps(
            [google("The input token count (9) exceeds the maximum number of tokens allowed (8).")]
        ),
        (8, 9, None),
    ),
    (
        "vertex",
        400,
        google(
            "Unable to submit request because the input token count is 40000 but the model only "
            "supports up to 32768. Reduce the input token count and try again."
        ),
        (32_768, 40_000, None),
    ),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with "
            "32768 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
        (32_768, 40_000, None),
    ),
    (
        "mistral, by its finish",
        200,
        {
            "choices": [{"message": {"content": "So"}, "finish_reason": "model_length"}],
            "usage": {"prompt_tokens": 32_700, "completion_tokens": 68},
        },
        (None, 32_700, None),
    ),
    (
        "anthropic, by its stop reason",
        200,
        {
            "type": "message",
            "content": [{"type": "text", "text": "So"}],
            "stop_reason": "model_context_window_exceeded",
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 190_000, "output_tokens": 9},
        },
        (None, 190_010, None),
    ),
    (
        "anthropic, by its stop reason in a stream",
        None,
        {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}},
        (None, None, None),
    ),
    (
        "z.ai, by its finish",
        200,
        {"choices": [{"delta": {}, "finish_reason": "model_context_window_exceeded"}]},
        (None, None, None),
    ),
    (
        "cohere",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - "
            "received 4115. Try using a shorter prompt."
        },
        (4081, 4115, None),
    ),
    (
        "groq",
        400,
        openai("Please reduce the length of the messages or completion.", EXCEEDED),
        (None, None, None),
    ),
    (
        "deepseek",
        400,
        openai(
            OPENAI + "65536 tokens. However, you requested 70000 tokens (66000 in the messages, "
            "4000 in the completion). Please reduce the length of the messages or completion.",
            "invalid_request_error",
        ),
        (65_536, 66_000, 4_000),
    ),
    (
        "openrouter",
        400,
        {
            "error": {
                "code": 400,
                "message": "This endpoint's maximum context length is 256000 tokens. However, you "
                "requested about 424983 tokens (358454 of text input, 56529 of tool input, 10000 "
                "in the output). Please reduce the length of either one.",
                "metadata": {"provider_name": None},
            }
        },
        (256_000, 414_983, 10_000),
    ),
    (
        "openrouter without tools",
        400,
        openai(
            "This endpoint's maximum context length is 32768 tokens. However, you requested about "
            "65544 tokens (8 of text input, 65536 in the output)."
        ),
        (32_768, 8, 65_536),
    ),
    (
        "openrouter, passing on",
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": json.dumps(anthropic("prompt is too long: 9 tokens > 8 maximum")),
                    "provider_name": "Anthropic",
                },
            }
        },
        (8, 9, None),
    ),
    (
        "openrouter, in a 200",
        200,
        {"error": {"code": 400, "message": "prompt is too long: 9 tokens > 8 maximum"}},
        (8, 9, None),
    ),
    (
        "tgi",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. "
            "Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
            "error_type": "validation",
        },
        (4097, 4000, 1000),
    ),
    (
        "tgi, prompt alone",
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4096 tokens. "
            "Given: 5000",
            "error_type": "validation",
        },
        (4096, 5000, None),
    ),
    (
        "vllm, older",
        400,
        {
            "object": "error",
            "message": OPENAI + "4096 tokens. However, you requested 5000 tokens (4500 in the "
            "messages, 500 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        (4096, 4500, 500),
    ),
    (
        "vllm, input only",
        400,
        openai(OPENAI + "4096 tokens. However, your request has 5000 input tokens."),
        (4096, 5000, None),
    ),
    (
        "vllm, sum",
        400,
        openai(
            "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum "
            "context length is 4096 tokens and your request has 1000 input tokens "
            "(4000 > 4096 - 1000)."
        ),
        (4096, 1000, 4000),
    ),
    (
        "vllm, exact",
        400,
        openai(
            OPENAI + "202752 tokens. However, you requested 64000 output tokens and your prompt "
            "contains 139000 input tokens, for a total of 203000 tokens."
        ),
        (202_752, 139_000, 64_000),
    ),
    (
        "vllm, characters",
        400,
        openai(
            OPENAI + "4096 tokens. However, you requested 100 output tokens and your prompt "
            "contains 900000 characters (more than 65536 characters, the bound for 3996 tokens)."
        ),
        (4096, None, 100),
    ),
    (
        "vllm, passed",
        400,
        openai(
            "You passed 5000 input tokens and requested 100 output tokens. However, the model's "
            "context length is only 4096 tokens, resulting in a maximum input length of 3996."
        ),
        (4096, 5000, 100),
    ),
    (
        "vllm, decoder",
        400,
        openai("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        (4096, 5000, None),
    ),
    (
        "sglang, flat",
        400,
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length "
            "(4096 tokens).",
            "type": "BadRequestError",
            "code": 400,
        },
        (4096, 5000, None),
    ),
    (
        "sglang, sum",
        400,
        {
            "object": "error",
            "message": "Requested token count exceeds the model's maximum context length of 4096 "
            "tokens. You requested a total of 6000 tokens: 5000 tokens from the input messages "
            "and 1000 tokens for the completion.",
        },
        (4096, 5000, 1000),
    ),
    (
        "sglang, without numbers",
        400,
        {"message": "Requested token count exceeds the model's maximum context length."},
        (None, None, None),
    ),
    (
        "sglang, allowed length",
        400,
        {"message": "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens)."},
        (4090, 5000, None),
    ),
    (
        "poolside",
        400,
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        (131_040, 131_393, None),
    ),
    (
        "llama.cpp, fields",
        400,
        {
            "error": {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": "too much",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }
        },
        (4096, 5000, None),
    ),
    (
        "llama.cpp, text",
        400,
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        (4096, 5000, None),
    ),
    (
        "llama.cpp, older",
        500,
        {"error": {"code": 500, "message": "the request exceeds the available context size"}},
        (None, None, None),
    ),
    (
        "llama.cpp, while answering",
        200,
        'data: {"error":{"code":500,"message":"Context size has been exceeded."}}',
        (None, None, None),
    ),
    (
        "llama.cpp, embeddings",
        500,
        openai(
            "input (600 tokens) is too large to process. increase the physical batch size "
            "(current batch size: 512)"
        ),
        (512, 600, None),
    ),
    (
        "llama-cpp-python",
        400,
        "Requested tokens (2100) exceed context window of 2048",
        (2048, 2100, None),
    ),
    (
        "ollama",
        400,
        {"error": "the prompt is longer than the context length currently available"},
        (None, None, None),
    ),
    (
        "ollama, excess",
        400,
        {"error": "prompt too long; exceeded max context length by 4 tokens"},
        (None, None, None),
    ),
    (
        "ollama, embeddings",
        400,
        {"error": "the input length exceeds the context length"},
        (None, None, None),
    ),
    (
        "lm studio",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length. Try to load the model with a larger context length."
        },
        (None, None, None),
    ),
    (
        "lm studio, with numbers",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length (n_keep: 5000>= n_ctx: 4096)."
        },
        (4096, 5000, None),
    ),
    (
        "lm studio, older",
        400,
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is "
        "loaded with context length of only 4096 tokens, which is not enough.",
        (4096, 5000, None),
    ),
    (
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains "
            "537812 tokens.",
        },
        (131_072, 537_812, None),
    ),
    ("xai, limit only", 400, "The maximum prompt length is 131072.", (131_072, None, None)),
    (
        "docker",
        400,
        "prompt has 5000 tokens, but the configured context size is 4096 tokens",
        (4096, 5000, None),
    ),
    (
        "cerebras",
        400,
        {
            "message": "Please reduce the length of the messages or completion. Current length is "
            "42328 while limit is 40000",
            "type": "invalid_request_error",
            "code": EXCEEDED,
        },
        (40_000, 42_328, None),
    ),
    (
        "kimi",
        400,
        openai("Your request exceeded model token limit: 262144 (requested: 291351)"),
        (262_144, 291_351, None),
    ),
    ("kimi, limit only", 400, openai("exceeded model token limit: 262144"), (262_144, None, None)),
    (
        "minimax",
        200,
        {"base_resp": {"status_code": 2013, "status_msg": "context window exceeds limit"}},
        (None, None, None),
    ),
    (
        "copilot",
        400,
        openai(
            "prompt token count of 140000 exceeds the limit of 128000",
            "model_max_prompt_tokens_exceeded",
        ),
        (128_000, 140_000, None),
    ),
    (
        "fireworks",
        400,
        openai("The prompt is too long: 140000, model maximum context length: 131071"),
        (131_071, 140_000, None),
    ),
    (
        "atlas",
        400,
        "Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)",
        (2048, 5152, None),
    ),
    (
        "tabby",
        400,
        {"detail": "Prompt length 5000 is greater than max_seq_len 4096"},
        (4096, 5000, None),
    ),
    (
        "dashscope",
        400,
        {"code": "InvalidParameter", "message": "Range of input length should be [1, 129024]"},
        (129_024, None, None),
    ),
    ("glm", 400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, (None,) * 3),
    (
        "github models",
        413,
        openai("Request body too large for gpt-4o model. Max size: 8000 tokens."),
        (8000, None, None),
    ),
    (
        "litellm, repr in text",
        400,
        "litellm.ContextWindowExceededError: Error code: 400 - {'error': {'message': \"This "
        "model's maximum context length is 8192 tokens. However, your messages resulted in 8227 "
        "tokens.\", 'type': 'invalid_request_error', 'code': 'context_length_exceeded'}}",
        (8192, 8227, None),
    ),
    (
        "litellm, JSON in text in JSON",
        500,
        openai(
            "APIError: AnthropicException - "
            + json.dumps(anthropic("prompt is too long: 9 tokens > 8 maximum"))
        ),
        (8, 9, None),
    ),
    (
        "a repr by itself",
        None,
        "{'error': {'message': 'prompt is too long: 9 tokens > 8 maximum'}}",
        (8, 9, None),
    ),
    (
        "an error beside choices",
        200,
        {
            "choices": [
                {
                    "finish_reason": "error",
                    "delta": {"content": ""},
                    "error": {"code": 400, "message": "prompt is too long: 9 tokens > 8 maximum"},
                }
            ]
        },
        (8, 9, None),
    ),
    ("unknown words", 400, {"error": "The conversation is too long"}, (None, None, None)),
    ("more unknown words", 400, "Your input exceeds this model's input limit", (None, None, None)),
    ("limits that were reached", 400, "Context limit reached", (None, None, None)),
    ("other languages", 400, openai("请求的上下文长度超出限制"), (None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "numbers"), [row[1:] for row in WINDOW], ids=[row[0] for row in WINDOW]
)
def test_an_error_is_parsed_from_an_object_text_and_bytes(
    status: int | None, body: Body, numbers: Numbers
) -> None:
    overflow = parse_overflow(status, body)
    assert overflow is not None
    assert (overflow.limit, overflow.sent, overflow.output) == numbers
    assert overflow.kind == "window"
    assert not overflow.at_least
    assert overflow.text
    if isinstance(body, str | dict):
        text = body if isinstance(body, str) else json.dumps(body)
        assert parse_overflow(status, text) == overflow
        assert parse_overflow(status, text.encode()) == overflow


@pytest.mark.parametrize("depth", range(5))
def test_a_nested_error_is_parsed(depth: int) -> None:
    body: Body = anthropic("prompt is too long: 205123 tokens > 200000 maximum")
    for _ in range(depth):
        body = openai("upstream said: " + json.dumps(body))
    overflow = parse_overflow(502, body)
    assert overflow is not None
    assert (overflow.limit, overflow.sent) == (200_000, 205_123)


def test_at_least_marks_a_lower_bound() -> None:
    overflow = parse_overflow(
        400,
        {
            "error": {
                "message": OPENAI + "262144 tokens. However, you requested 128000 output tokens "
                "and your prompt contains at least 134145 input tokens, for a total of at least "
                "262145 tokens. (parameter=input_tokens, value=134145)",
                "type": "BadRequestError",
                "param": "input_tokens",
                "code": 400,
            }
        },
    )
    assert overflow is not None
    assert (overflow.limit, overflow.sent, overflow.output) == (262_144, 134_145, 128_000)
    assert overflow.at_least


OTHER_KINDS: list[tuple[int | None, Body, Kind, int | None, int | None]] = [
    (
        429,
        openai("Request too large " + TPM + "30000, Requested 45000.", RATE, "tokens"),
        "rate",
        30_000,
        45_000,
    ),
    (
        413,
        openai(
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_1` service "
            "tier `on_demand` on tokens per minute (TPM): Limit 12,000, Requested 25,001, please "
            "reduce your message size and try again.",
            "rate_limit_exceeded",
            "tokens",
        ),
        "rate",
        12_000,
        25_001,
    ),
    (429, "Request too large for gpt-4o on tokens per min", "rate", None, None),
    (
        413,
        anthropic("Request exceeds the maximum size", "request_too_large"),
        "size",
        None,
        None,
    ),
    (400, google("Request payload size exceeds the limit: 20971520 bytes."), "size", None, None),
    (
        400,
        openai(
            "Invalid 'messages[1].content': string too long. Expected a string with maximum length "
            "1048576, but got a string with length 2000000 instead.",
            "string_above_max_length",
        ),
        "size",
        None,
        None,
    ),
    (
        400,
        {"message": "Malformed input request: expected maxLength: 50000, actual: 60000"},
        "size",
        None,
        None,
    ),
    (413, "<html><title>413 Request Entity Too Large</title></html>", "size", None, None),
    (413, b"", "size", None, None),
    (413, None, "size", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "limit", "sent"), OTHER_KINDS)
def test_rate_and_size_limits_have_their_own_kinds(
    status: int | None, body: Body, kind: Kind, limit: int | None, sent: int | None
) -> None:
    overflow = parse_overflow(status, body)
    assert overflow is not None
    assert (overflow.kind, overflow.limit, overflow.sent) == (kind, limit, sent)


TALK = "The server said: prompt is too long: 9 tokens > 8 maximum, context_length_exceeded"

OTHERS: list[tuple[int | None, Body]] = [
    (401, openai("Incorrect API key provided: sk-12345.", "invalid_api_key")),
    (403, anthropic("Your account does not have this context window", "permission_error")),
    (404, openai("The model `gpt-9` does not exist", "model_not_found")),
    (400, openai("The requested model 'gpt-9' does not exist", "model_not_found")),
    (429, openai("Rate limit reached " + TPM + "30000, Used 29000, Requested 2000. Please try "
                 "again in 2s.", "rate_limit_exceeded", "tokens")),
    (429, openai("Rate limit reached for gpt-4o in organization org-1 on requests per min (RPM): "
                 "Limit 3, Used 3, Requested 1.", "rate_limit_exceeded", "requests")),
    (429, openai("You exceeded your current quota, please check your plan and billing details.",
                 "insufficient_quota")),
    (429, anthropic("This request would exceed your organization's rate limit of 40,000 input "
                    "tokens per minute.", "rate_limit_error")),
    (429, anthropic("Number of request tokens has exceeded your per-minute rate limit",
                    "rate_limit_error")),
    (429, {"message": "Too many tokens, please wait before trying again."}),
    (429, {"message": "Too many requests"}),
    (429, google("Quota exceeded for metric: generate_content_free_tier_input_token_count, limit: "
                 "250000. Please retry in 30s.")),
    (429, "Too Many Requests"),
    (429, ""),
    (400, "request 4290 of session 11429 was malformed"),
    (200, {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-day"}}),
    (402, {"error": {"code": 402, "message": "This request requires more credits, or fewer "
                     "max_tokens. You requested up to 65536 tokens, but can only afford 1234."}}),
    (200, {"error": {"code": 402, "message": "This request requires more credits, or fewer "
                     "max_tokens. You requested up to 65536 tokens, but can only afford 1234."}}),
    (400, anthropic("Your credit balance is too low to access the Anthropic API.")),
    (400, openai("max_tokens is too large: 100000. This model supports at most 16384 completion "
                 "tokens, whereas you provided 100000.", "invalid_value")),
    (400, anthropic("max_tokens: 10000 > 8192, which is the maximum allowed number of output "
                    "tokens for claude-3-5-sonnet")),
    (422, {"error": "Input validation error: `max_new_tokens` must be <= 512. Given: 1000",
           "error_type": "validation"}),
    (400, {"message": "Range of max_tokens should be [1, 8192]"}),
    (400, openai("max_tokens must be at least 1, got 0")),
    (400, anthropic("`max_tokens` must be greater than `thinking.budget_tokens`")),
    (400, google("Unable to submit request because it has a maxOutputTokens value of 90000 but "
                 "the supported range is from 1 to 65537.")),
    (400, openai("The response was filtered due to the prompt triggering Azure OpenAI's content "
                 "management policy.", "content_filter")),
    (400, openai("Invalid prompt: it was flagged as against our policy.", "invalid_prompt")),
    (400, anthropic("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: "
                    "6000000 bytes > 5242880 bytes")),
    (400, anthropic("At least one of the image dimensions exceed max allowed size: 8000 pixels")),
    (413, openai("The image is too large: at most 4096 pixels")),
    (400, anthropic("A maximum of 100 PDF pages may be provided.")),
    (400, openai("We could not parse the JSON body of your request.")),
    (422, {"detail": [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error",
                       "input": {}, "ctx": {"error": "Expecting value"}}]}),
    (422, {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required",
                       "input": {"messages": [{"role": "user", "content": TALK}]}}]}),
    (400, openai("Invalid 'tools': array too long. Expected an array with maximum length 128, but "
                 "got an array with length 200 instead.", "array_above_max_length")),
    (400, openai("The maximum number of tools is 128")),
    (400, openai("Invalid 'messages': array too long. Expected an array with maximum length 2048, "
                 "but got an array with length 3000 instead.", "array_above_max_length")),
    (400, "messages must have at most 2048 items"),
    (400, openai("Invalid 'tools[0].function.description': string too long. Expected a string with "
                 "maximum length 1024, but got a string with length 2000 instead.",
                 "string_above_max_length")),
    (400, openai("Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with "
                 "maximum length 40, but got a string with length 52 instead.",
                 "string_above_max_length")),
    (400, openai("Invalid 'stop': too many stop sequences")),
    (500, openai("Conversation roles must alternate user/assistant/user/assistant/...")),
    (400, anthropic("messages: roles must alternate between \"user\" and \"assistant\"")),
    (400, anthropic("messages.3: `tool_use` ids were found without `tool_result` blocks")),
    (400, openai("Unsupported parameter: 'max_tokens' is not supported with this model.",
                 "unsupported_parameter")),
    (529, anthropic("Overloaded", "overloaded_error")),
    (503, openai("That model is currently overloaded with other requests.", None, "server_error")),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
    (504, "upstream request timeout"),
    (502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
    (500, anthropic("Internal server error", "api_error")),
    (500, "The model's max seq len (131072) is larger than the maximum number of tokens that can "
          "be stored in KV cache (50000)."),
    (400, "Model context window too small (minimum is 16000 tokens)"),
    (408, "Request exceeded the time limit"),
    (400, openai("Monthly token limit exceeded for this key")),
    (400, None),
    (400, b""),
    (200, {"choices": [{"message": {"role": "assistant", "content": TALK},
                        "finish_reason": "stop"}]}),
    (200, {"choices": [{"delta": {"content": TALK}, "finish_reason": None}]}),
    (200, {"choices": [{"message": {"content": "So"}, "finish_reason": "length"}]}),
    (200, {"type": "message", "content": [{"type": "text", "text": TALK}],
           "stop_reason": "end_turn"}),
    (200, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": TALK}}),
    (200, {"type": "response.completed", "response": {"error": None, "output": [
        {"type": "message", "content": [{"type": "output_text", "text": TALK}]}]}}),
    (200, {"response": TALK, "done": True}),
    (200, {"message": {"role": "assistant", "content": TALK}, "done": True}),
    (200, TALK),
    (200, {"n_ctx": 4096, "n_prompt_tokens": 12}),
    (None, None),
    (None, "data: [DONE]"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_other_errors_and_replies_do_not_match(status: int | None, body: Body) -> None:
    assert parse_overflow(status, body) is None
    if isinstance(body, dict):
        assert parse_overflow(status, json.dumps(body)) is None


def test_the_tables_have_enough_rows() -> None:
    assert len(WINDOW) + len(OTHER_KINDS) >= 45
    assert len(OTHERS) >= 40


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (openai("prompt is  too long:\n9 tokens > 8"), "prompt is too long: 9 tokens > 8"),
        (openai("Too much.  Really.", EXCEEDED), "Too much. Really."),
        ({"error": {"code": EXCEEDED}}, EXCEEDED),
        (openai("prompt is too long " + "x" * 999), "prompt is too long " + "x" * 280 + "…"),
    ],
)  # fmt: skip
def test_the_servers_message_is_kept_and_shortened(body: Body, text: str) -> None:
    overflow = parse_overflow(400, body)
    assert overflow is not None
    assert overflow.text == text
    assert len(overflow.text) <= MAX_EXCERPT


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "choices", "usage", "n_ctx"])
            | st.sampled_from(["n_prompt_tokens", "finish_reason", "input_tokens", "delta"])
            | st.text(),
            inner,
        )
    ),
)
statuses = st.none() | st.integers(100, 599)


@given(statuses, values | st.binary())
def test_no_body_raises(status: int | None, body: Any) -> None:
    found = parse_overflow(status, body)
    assert found is None or isinstance(found, Overflow)


@given(statuses, values)
def test_no_text_of_json_raises(status: int | None, body: Any) -> None:
    parse_overflow(status, json.dumps(body))
    parse_overflow(status, repr(body))


phrases = [*(phrase for _, phrase in load_phrases().specific), *load_phrases().generic]


@given(statuses, st.lists(st.sampled_from(phrases) | st.text(), max_size=9))
def test_texts_made_of_phrases_do_not_raise(status: int | None, parts: list[str]) -> None:
    parse_overflow(status, " ".join(parts).replace("<limit>", "1" * 40).replace("<sent>", "2,000"))


def test_recursive_and_deep_bodies_do_not_raise() -> None:
    circle: dict[str, Any] = {"message": "no"}
    circle["error"] = circle
    circle["errors"] = [circle] * 99
    assert parse_overflow(400, circle) is None
    assert parse_overflow(400, "[" * 99_999) is None
    assert parse_overflow(400, "data:" * 99_999) is None
    assert parse_overflow(400, '{"error":' * 9_999 + "1" + "}" * 9_999) is None


@pytest.mark.parametrize(
    "piece",
    [
        *("\\", "\\\\u", " ", "1", "1,", "max_", "exceed", "a", "{", "data: {}\n", "prompt "),
        *("input tokens exceed ", "maximum context length is 1 ", "tokens per min "),
        "maximum context length is 1 requested 1 output tokens and your prompt contains ",
    ],
)
def test_a_huge_body_takes_bounded_time(piece: str) -> None:
    """If the time grew with the square of the size, the test would time out."""
    body = piece * (3_000_000 // len(piece))
    parse_overflow(400, body)
    parse_overflow(400, {"error": {"message": body, "errors": [body] * 50}})


def test_a_long_echo_of_the_conversation_is_ignored() -> None:
    echo = {"messages": [{"role": "user", "content": TALK}] * 3_000}
    body = {"detail": [{"type": "missing", "msg": "Field required", "input": echo}]}
    assert len(json.dumps(body)) > 300_000
    assert parse_overflow(422, json.dumps(body)) is None
