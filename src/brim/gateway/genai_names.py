"""The names of OpenTelemetry's conventions for generative AI, all of which may still change."""

from __future__ import annotations

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITTEN_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"

TOKEN_USAGE: Final = "gen_ai.client.token.usage"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
TOKEN_BUCKETS: Final = tuple(4.0**power for power in range(14))
SECOND_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
"""The boundaries of histograms, which the conventions name."""

# What is brim's own.
REQUEST_ID: Final = "brim.request.id"
UPSTREAM: Final = "brim.upstream"
KEY: Final = "brim.key"
PROJECT: Final = "brim.project"
END: Final = "brim.end"
ATTEMPTS: Final = "brim.attempts"
TOKENS_TRIMMED: Final = "brim.tokens.trimmed"
COST: Final = "brim.cost.dollars"
PROBLEM_EVENT: Final = "brim.upstream.problem"
PROBLEM: Final = "brim.problem"

OPERATIONS: Final = {"gemini": "generate_content", "embeddings": "embeddings"}
"""The operation of each format; that of the others is `chat`."""
PROVIDERS: Final = {
    "api.anthropic.com": "anthropic",
    "api.openai.com": "openai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
}
"""Providers by host."""
PROVIDER_DOMAINS: Final = {
    ".openai.azure.com": "azure.ai.openai",
    ".services.ai.azure.com": "azure.ai.inference",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    ".amazonaws.com": "aws.bedrock",
}
"""Providers by the ending of the host."""
