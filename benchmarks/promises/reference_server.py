"""Asks the server itself about a request, without the code under test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from brim.providers.local import LocalServer

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else 'You may call tools.' }}
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that prints tools and calls; the small model's own template omits them."""


class ReferenceServer:
    """A plain HTTP client of a server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=600)

    def count(self, body: Mapping[str, Any]) -> int:
        """Return the server's count; raise `TemplateRejectionError` if it rejects the sequence."""
        status, answer = self.post("/v1/chat/completions/input_tokens", body)
        if status != 200:
            raise TemplateRejectionError(status, answer)
        tokens: int = answer["input_tokens"]
        return tokens

    def send(self, body: Mapping[str, Any], **options: Any) -> tuple[int, dict[str, Any]]:
        """Send a request; return status and body of the response."""
        wanted = {**body, "max_tokens": 1, "temperature": 0, **options}
        return self.post("/v1/chat/completions", wanted)

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {
            "Authorization": f"Bearer {self.server.key}",
            "Content-Type": "application/json",
        }
        data = json.dumps(dict(body)).encode()
        try:
            self._connection.request("POST", path, data, headers)
            response = self._connection.getresponse()
        except ConnectionError:  # the server does not keep an idle connection for long
            self._connection.close()
            self._connection.request("POST", path, data, headers)
            response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self._connection.close()


class TemplateRejectionError(Exception):
    """The server rejected the sequence of messages."""
