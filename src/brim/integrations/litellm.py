"""litellm: fitted calls, and the proxy's hook before a call."""

from __future__ import annotations

from typing import Any, Unpack

import litellm
from litellm.integrations.custom_logger import CustomLogger

from brim.integrations.adapter import AdapterSettings, MessageFitter


class BrimCompletion:
    """litellm's `completion` and `acompletion`, with every request fitted."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = MessageFitter(**settings)

    def fit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call with messages that fit; `model` names its window."""
        return dict(self._fitter.fit(arguments, arguments.get("model")))

    def completion(self, **arguments: Any) -> Any:
        return litellm.completion(**self.fit(arguments))

    async def acompletion(self, **arguments: Any) -> Any:
        return await litellm.acompletion(**self.fit(arguments))


class BrimProxyHook(CustomLogger):  # type: ignore[misc]
    """The proxy's hook: `callbacks: module.hook` with `hook = BrimProxyHook(window=8192)`."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        super().__init__()
        self._completion = BrimCompletion(**settings)

    async def async_pre_call_hook(
        self, user_api_key_dict: object, cache: object, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Return the request with messages that fit; other calls stay as they are."""
        if "messages" not in data:
            return data
        data.update(self._completion.fit(data))
        return data
