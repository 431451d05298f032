"""`POST /v1/compress`: messages in, fitted messages out, as proxies with a compressor call it.

The contract is Headroom's: `{"messages", "model"}` returns `{"messages", "tokens_before",
"tokens_after", "compression_ratio"}`. The messages are those of chat completions or of Anthropic,
and are fitted to the window of the model, or to `target_tokens` if that is less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from brim.errors import InputError
from brim.fitting.fitter import BodyFitter
from brim.gateway.model_route import ModelRoute
from brim.gateway.routes import ModelRoutes
from brim.wire.formats import detect_format

TARGET_FIELD: Final = "target_tokens"
"""The most tokens of the returned messages, if it is less than the model's limit."""
_COUNTED_FIELDS: Final = ("messages", "system", "tools")


def find_route(routes: ModelRoutes, body: Mapping[str, Any]) -> ModelRoute:
    """Return the route of the model that the messages are for."""
    if not isinstance(body.get("messages"), list):
        raise InputError("`messages` must be a list of messages.")
    return routes.find(body.get("model"), detect_format(body))


def compress(route: ModelRoute, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fitted messages of a body with their counts.

    Raise `ContextOverflowError` if they cannot be made short enough.
    """
    fitter = _limit_budget(route.fitter(route.policy), body.get(TARGET_FIELD))
    given = {key: body[key] for key in _COUNTED_FIELDS if body.get(key) is not None}
    request = fitter.fit(given, detect_format(body))
    before, after = request.plan.before, request.plan.tokens
    return {
        "messages": request["messages"],
        "tokens_before": before,
        "tokens_after": after,
        "tokens_saved": before - after,
        "compression_ratio": round(after / before, 4) if before else 1.0,
    }


def _limit_budget(fitter: BodyFitter, target: object) -> BodyFitter:
    if target is None:
        return fitter
    if type(target) is not int or target < 1:
        raise InputError(f"`{TARGET_FIELD}` must be a whole number above 0.")
    budget = fitter.budget
    most = min(target + budget.margin, budget.room)
    return replace(fitter, budget=replace(budget, largest_input=most))
