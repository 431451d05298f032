"""Small chat templates that reject and drop what real ones do, made for the tests."""

from __future__ import annotations

from typing import Final

MISTRAL = """
{%- set seen = namespace(turns=0, waiting=0) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}
    {%- if not loop.first -%}{{ raise_exception('a late system message') }}{%- endif -%}
    [SYSTEM]{{ message.content }}[/SYSTEM]
  {%- elif message.role == 'tool' -%}
    {%- if seen.waiting == 0 -%}{{ raise_exception('a result without its call') }}{%- endif -%}
    {%- set seen.waiting = seen.waiting - 1 -%}
    [RESULT]{{ message.content }}[/RESULT]
  {%- elif message.role not in ['user', 'assistant'] -%}
    {{ raise_exception('an unknown role') }}
  {%- else -%}
    {%- if seen.waiting > 0 -%}{{ raise_exception('a call without its result') }}{%- endif -%}
    {%- if message.role == 'assistant' and message.tool_calls -%}
      {%- for call in message.tool_calls -%}
        {%- if call.id | length != 9 -%}{{ raise_exception('an id too long') }}{%- endif -%}
        [CALL]{{ call.function.name }}{{ call.function.arguments }}{{ call.id }}[/CALL]
      {%- endfor -%}
      {%- set seen.waiting = message.tool_calls | length -%}
    {%- else -%}
      {%- if (message.role == 'user') != (seen.turns % 2 == 0) -%}
        {{ raise_exception('turns do not alternate') }}
      {%- endif -%}
      {%- set seen.turns = seen.turns + 1 -%}
      [{{ message.role }}]{{ message.content }}[/]
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if seen.waiting > 0 -%}{{ raise_exception('a call without its result') }}{%- endif -%}
"""
GEMMA = """
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{{ raise_exception('no system role') }}{%- endif -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('turns do not alternate') }}
  {%- endif -%}
  {%- if message.tool_calls -%}{{ raise_exception('no tools') }}{%- endif -%}
  <{{ message.role }}>{{ message.content | trim }}</>
{%- endfor -%}
"""
LLAMA = """
{%- for message in messages -%}
  {%- if 'tool_calls' in message -%}
    {%- if message.tool_calls | length != 1 -%}{{ raise_exception('one at a time') }}{%- endif -%}
    <call>{{ message.tool_calls[0].function.name }}</>
  {%- else -%}
    <{{ message.role }}>{{ message.content }}</>
  {%- endif -%}
{%- endfor -%}
"""
QWEN = """
{%- set seen = namespace(user=false) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' and not loop.first -%}
    {{ raise_exception('a late system message') }}
  {%- elif message.role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{ raise_exception('an unknown role') }}
  {%- elif message.role == 'user' -%}
    {%- set seen.user = true -%}
  {%- endif -%}
  <{{ message.role }}>{{ message.content }}</>
{%- endfor -%}
{%- if not seen.user -%}{{ raise_exception('no user') }}{%- endif -%}
"""
PHI = """
{%- for message in messages -%}
  {%- if message.role in ['system', 'user', 'assistant'] -%}
    <{{ message.role }}>{{ message.content }}</>
  {%- endif -%}
{%- endfor -%}
"""
NEMO = """
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {%- if tools and message == users[-1] -%}[TOOLS]{{ tools | tojson }}[/TOOLS]{%- endif -%}
    [INST]{{ messages[0].content if loop.last and messages[0].role == 'system' }}
    {{- message.content }}[/INST]
  {%- elif message.role == 'assistant' and message.tool_calls -%}
    [CALLS]{{ message.tool_calls | tojson }}
  {%- elif message.role != 'system' -%}
    [{{ message.role }}]{{ message.content }}[/]
  {%- endif -%}
{%- endfor -%}
"""
R1 = """
{%- for message in messages -%}
  {%- if message.role == 'assistant' and message.content is none -%}
    {%- for call in message.tool_calls -%}<call>{{ call.function.arguments }}</>{%- endfor -%}
  {%- else -%}
    <{{ message.role }}>{{ '' + message.content }}</>
  {%- endif -%}
{%- endfor -%}
"""
CHATML = """
{%- for message in messages -%}
  <{{ message.role }}>{{ '' + message.content }}</>
{%- endfor -%}
"""
TEMPLATES: Final = {"mistral": MISTRAL, "gemma": GEMMA, "llama-3": LLAMA, "qwen3.5": QWEN}
"""By the names of their rules."""
ALL: Final = (*TEMPLATES.values(), PHI, NEMO, R1, CHATML)
