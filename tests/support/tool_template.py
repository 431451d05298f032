"""A chat template that teaches a small model to call tools, and the start of such a reply."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = r"""
{%- set has_system = messages[0].role == 'system' %}
{{- '<|im_start|>system\n' }}{{- messages[0].content if has_system else '' }}
{%- if tools %}
  {{- '\n\nYou may call these functions:\n<tools>' }}
  {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
  {{- '\n</tools>\nA call is written like this:\n<tool_call>\n' }}
  {{- '{"name": NAME, "arguments": OBJECT}\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for turn in messages[1:] if has_system else messages %}
  {%- if turn.role == 'tool' %}
    {{- '<|im_start|>user\n<tool_response>\n' }}{{- turn.content }}
    {{- '\n</tool_response><|im_end|>\n' }}
  {%- else %}
    {{- '<|im_start|>' }}{{- turn.role }}{{- '\n' }}{{- turn.content or '' }}
    {%- for call in turn.tool_calls or [] %}
      {{- '\n<tool_call>\n{"name": "' }}{{- call.function.name }}{{- '", "arguments": ' }}
      {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
ONE_CALL: Final = "<tool_call>"
"""The start of a second call: the model would repeat itself until its limit."""
BEGUN: Final = {"role": "assistant", "content": "<tool_call>\n"}
"""The start of the reply: without it, `tool_choice` has no effect."""
