"""Generated bodies, and the rules by which the providers accept them.

The rules are based on the providers' documentation, independently of how brim reads a body.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.strategies import Raw, text

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MARK: Raw = {"type": "ephemeral"}

lengths = st.one_of(st.integers(1, 12), st.integers(1, 80), st.sampled_from((200, 500)))
rarely = st.integers(0, 7).map(lambda number: number == 7)
models = st.sampled_from(("gpt-4o", "claude-sonnet-4-5", "gpt-oss-20b", None))
shares = st.sampled_from((12, 25, 40, 55, 70, 85, 95, 99))
"""Percentages of the input that may be sent."""
rounds = st.sampled_from((0, 1, 2, 4, 8, 12, 16))
policies = st.sampled_from(("steady", "thrift", "rolling", "sliding", "recall"))


@st.composite
def texts(draw: st.DrawFn) -> str:
    return text(draw(lengths), draw(st.integers(0, 40)))


@st.composite
def own_fields(draw: st.DrawFn) -> Raw:
    """Sometimes a pin, a priority, or an unknown field."""
    fields: Raw = {}
    if draw(st.integers(0, 30)) == 30:
        fields["_pin"] = True
    if draw(st.integers(0, 30)) == 30:
        fields["_priority"] = draw(st.integers(-2, 2))
    if draw(rarely):
        fields["x_odd"] = [1, {"a": None}]
    return fields


# Anthropic


@st.composite
def text_blocks(draw: st.DrawFn) -> Raw:
    block: Raw = {"type": "text", "text": draw(texts())}
    if draw(rarely):
        block["cache_control"] = MARK
    return block | draw(own_fields())


media_blocks = st.sampled_from(
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "document", "source": {"type": "text", "data": "one two three"}, "title": "t"},
        {"type": "search_result", "source": "s", "title": "t", "content": []},
        {"type": "unknown_type", "value": {"deep": [1, 2, 3]}},
    )
)


@st.composite
def thoughts(draw: st.DrawFn) -> Raw:
    if draw(rarely):
        return {"type": "redacted_thinking", "data": "RW5jcnlwdGVk" * draw(st.integers(1, 30))}
    shown = draw(st.one_of(st.just(""), texts()))
    return {"type": "thinking", "thinking": shown, "signature": "c2lnbg==" * 12}


@st.composite
def server_calls(draw: st.DrawFn) -> list[Raw]:
    name = f"srvtoolu_{draw(st.integers(0, 10**6))}"
    found = [{"type": "web_search_result", "encrypted_content": "Zm91bmQ=" * 40, "title": "x"}]
    return [
        {"type": "server_tool_use", "id": name, "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": name, "content": found},
    ]


@st.composite
def assistant_contents(draw: st.DrawFn, calls: list[str]) -> Any:
    if not calls and draw(st.booleans()):
        return draw(texts())
    blocks: list[Raw] = draw(st.lists(thoughts(), max_size=2)) if draw(st.booleans()) else []
    if draw(rarely):
        blocks += draw(server_calls())
    if not calls or draw(st.booleans()):
        blocks.append(draw(text_blocks()))
    blocks += [
        {"type": "tool_use", "id": name, "name": "run", "input": {"command": text(3, number)}}
        for number, name in enumerate(calls)
    ]
    return blocks


@st.composite
def result_blocks(draw: st.DrawFn, name: str) -> Raw:
    block: Raw = {"type": "tool_result", "tool_use_id": name}
    match draw(st.integers(0, 7)):
        case 0:
            pass
        case 1:
            block["content"] = ""
        case 2 | 3:
            block["content"] = draw(st.lists(st.one_of(text_blocks(), media_blocks), max_size=4))
        case _:
            block["content"] = draw(texts())
    if draw(rarely) and block.get("content"):
        block["is_error"] = True
    if draw(rarely):
        block["cache_control"] = MARK
    return block | draw(own_fields())


@st.composite
def user_contents(draw: st.DrawFn) -> list[Raw]:
    blocks: list[Raw] = draw(st.lists(st.one_of(text_blocks(), media_blocks), max_size=3))
    return blocks or [draw(text_blocks())]


@st.composite
def anthropic_bodies(draw: st.DrawFn) -> Raw:
    """A valid request: roles alternate, a user turn is first, every call is answered in the next
    turn.
    """
    start = draw(st.one_of(texts(), user_contents()))
    messages: list[Raw] = [{"role": "user", "content": start} | draw(own_fields())]
    for _ in range(draw(rounds)):
        first = draw(st.integers(0, 5))  # ids are reused in later turns
        calls = [
            f"toolu_{first + place}" for place in range(draw(st.sampled_from((0, 1, 1, 2, 3))))
        ]
        content = draw(assistant_contents(calls))
        messages.append({"role": "assistant", "content": content} | draw(own_fields()))
        results: list[Raw] = [draw(result_blocks(name)) for name in draw(st.permutations(calls))]
        if not calls or draw(rarely):
            user_content: Any = results + draw(user_contents())
            if not calls and draw(st.booleans()):
                user_content = draw(texts())
        else:
            user_content = results
        messages.append({"role": "user", "content": user_content} | draw(own_fields()))
    body: Raw = {"max_tokens": 1, "messages": messages, "anthropic_version": "2023-06-01"}
    if draw(st.booleans()):
        system = st.one_of(texts(), st.lists(text_blocks(), min_size=1, max_size=2))
        body["system"] = draw(system)
    return body


def find_anthropic_violations(body: Any) -> list[str]:
    """Return why the Messages API would reject a body."""
    violations: list[str] = []
    waiting: list[str] = []
    served: set[str] = set()
    before = "assistant"
    for number, message in enumerate(body["messages"]):
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if role == before:
            violations.append(f"{number}: roles must alternate")
        if not content:
            violations.append(f"{number}: empty content")
        if any(key.startswith("_") for part in (message, *content) for key in part):
            violations.append(f"{number}: a private field")
        results = [block for block in content if block["type"] == "tool_result"]
        if content[: len(results)] != results:
            violations.append(f"{number}: results must come first")
        if sorted(block["tool_use_id"] for block in results) != sorted(waiting):
            violations.append(f"{number}: calls {waiting} and their results do not match")
        for block in content:
            violations += [
                f"{number}: {violation}" for violation in _find_block_violations(block, served)
            ]
        waiting = [block["id"] for block in content if block["type"] == "tool_use"]
        if waiting and role == "user":
            violations.append(f"{number}: a user calls a tool")
        before = role
    return violations + ["calls at the end"] * bool(waiting)


def _find_block_violations(block: Raw, served: set[str]) -> list[str]:
    violations: list[str] = []
    match block:
        case {"type": "text", "text": ""}:
            violations.append("an empty text")
        case {"type": "tool_result", "is_error": True} if not block.get("content"):
            violations.append("an error without content")
        case {"type": "server_tool_use", "id": name}:
            served.add(name)
        case {"type": "web_search_tool_result", "tool_use_id": name} if name not in served:
            violations.append("a server's result without its call")
        case {"type": "tool_result", "content": [*parts]}:
            violations += ["an empty text in a result" for part in parts if part.get("text") == ""]
    return violations


# Responses


@st.composite
def input_parts(draw: st.DrawFn) -> Raw:
    return draw(
        st.one_of(
            texts().map(lambda text: {"type": "input_text", "text": text}),
            st.sampled_from(
                (
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
                    {"type": "unknown_type", "value": [1, 2]},
                )
            ),
        )
    )


@st.composite
def user_items(draw: st.DrawFn) -> Raw:
    content: Any = draw(st.one_of(texts(), st.lists(input_parts(), min_size=1, max_size=3)))
    item: Raw = {"role": "user", "content": content}
    return (item if draw(st.booleans()) else {"type": "message", **item}) | draw(own_fields())


@st.composite
def assistant_items(draw: st.DrawFn, calls: list[Raw]) -> list[Raw]:
    """The items of one reply of the model."""
    items: list[Raw] = []
    number = draw(st.integers(0, 10**6))
    if draw(st.booleans()):
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [],
                "encrypted_content": "Zx" * 90,
            }
        )
    if draw(rarely):
        items.append({"type": "web_search_call", "id": f"ws_{number}", "status": "completed"})
    if draw(rarely):
        items.append({"type": "unknown_type", "id": f"x_{number}", "value": text(9, number)})
    if not calls or draw(st.booleans()):
        part = {"type": "output_text", "text": draw(texts()), "annotations": []}
        content: Any = draw(st.sampled_from((part["text"], [part], [{"type": "refusal"}, part])))
        items.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
            | draw(own_fields())
        )
    return items + calls


@st.composite
def call_pairs(draw: st.DrawFn, name: str) -> tuple[Raw, Raw]:
    """A call and its output, of any kind."""
    match draw(st.integers(0, 9)):
        case 0:
            call: Raw = {"type": "computer_call", "action": {"type": "screenshot"}}
            shot = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PIXEL}"}
            output: Raw = {"type": "computer_call_output", "output": shot}
        case 1:
            call = {"type": "shell_call", "action": {"commands": ["ls"]}}
            lines = [{"stdout": draw(texts()), "stderr": "", "outcome": {"type": "exit"}}]
            output = {"type": "shell_call_output", "output": lines}
        case 2:
            call = {"type": "custom_tool_call", "name": "run", "input": draw(texts())}
            output = {"type": "custom_tool_call_output", "output": draw(texts())}
        case 3:
            call = {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}}
            output = {"type": "apply_patch_call_output", "status": "completed"}
        case 4:
            call = {"type": "function_call", "name": "run", "arguments": "{}"}
            parts = draw(st.lists(input_parts(), max_size=4))
            output = {"type": "function_call_output", "output": parts}
        case _:
            call = {"type": "function_call", "name": "run", "arguments": '{"a": 1}', "id": "fc"}
            output = {
                "type": "function_call_output",
                "output": draw(st.one_of(st.just(""), texts())),
            }
    return call | {"call_id": name}, output | {"call_id": name} | draw(own_fields())


@st.composite
def responses_bodies(draw: st.DrawFn) -> Raw:
    items: list[Raw] = []
    if draw(st.booleans()):
        items.append({"role": "developer", "content": draw(texts())})
    items.append(draw(user_items()))
    for _ in range(draw(rounds)):
        first = draw(st.integers(0, 5))
        names = [f"call_{first + place}" for place in range(draw(st.sampled_from((0, 1, 1, 2, 3))))]
        pairs = [draw(call_pairs(name)) for name in names]
        items += draw(assistant_items([call for call, _ in pairs]))
        items += [output for _, output in draw(st.permutations(pairs))]
        if not names or draw(rarely):
            items.append(draw(user_items()))
    body: Raw = {"input": items, "max_output_tokens": 1, "store": False}
    if draw(st.booleans()):
        body["instructions"] = draw(texts())
    return body


def _is_note(item: Raw) -> bool:
    return "'[brim: " in str(item["content"])


def find_responses_violations(body: Any) -> list[str]:
    """Return why the Responses API would reject a body, or a model misread it."""
    violations: list[str] = []
    waiting: list[str] = []
    items = body["input"]
    turns = [item for item in items if item.get("role") != "developer"]
    if turns and turns[0].get("role") != "user":
        violations.append("the first turn is not a user's")
    for number, item in enumerate(turns):
        kind = item.get("type", "message")
        following = turns[number + 1] if number + 1 < len(turns) else {"role": "user"}
        if any(key.startswith("_") for key in item):
            violations.append(f"{number}: a private field")
        if kind == "reasoning" and (
            following.get("role") == "user" or following["type"].endswith("_output")
        ):
            violations.append(f"{number}: reasoning without the item after it")
        if kind.endswith("_output"):
            if item["call_id"] not in waiting:
                violations.append(f"{number}: an output without its call")
            else:
                waiting.remove(item["call_id"])
        elif item.get("call_id"):
            waiting.append(item["call_id"])
        elif item.get("role") == "user":
            violations += [f"{number}: calls without output"] * bool(waiting)
            waiting = []
            if following.get("role") == "user" and number + 1 < len(turns) and not _is_note(item):
                violations.append(f"{number}: two users meet")
    return violations + ["calls without output at the end"] * bool(waiting)


# Invalid bodies

ODD_MESSAGES: tuple[Raw, ...] = (
    {"role": "user", "content": []},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "system", "content": "Be brief."},
    {"role": "critic", "content": "Hm."},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "I see", "signature": "x"}]},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "abc"}]},
    {"role": "assistant", "content": [{"type": "compaction", "content": "Earlier: nothing."}]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "lost", "name": "n", "input": {}}],
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "first the words"},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "then the result"},
            {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{PIXEL}"}},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "odd"}]},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "by program", "signature": "x"},
            {"type": "server_tool_use", "id": "srv", "name": "code_execution", "input": {}},
            {"type": "tool_use", "id": "p", "name": "n", "input": {}, "caller": {"tool_id": "srv"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "p", "content": "7"}]},
    {
        "role": "assistant",
        "content": [{"type": "code_execution_tool_result", "tool_use_id": "srv", "content": {}}],
    },
)

ODD_ITEMS: tuple[Raw, ...] = (
    {"role": "user", "content": []},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "developer", "content": "Be brief."},
    {"role": "critic", "content": "Hm."},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "compaction", "encrypted_content": "Zm9v" * 30},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "lost", "name": "n", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "stray", "output": "found"},
    {"type": "computer_call_output", "call_id": "stray", "output": {"type": "odd"}},
    {"type": "tool_search_output", "call_id": None, "tools": []},
    {"type": "mcp_approval_request", "id": "ask", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "ask", "approve": True},
    {"type": "image_generation_call", "id": "ig", "result": PIXEL},
    {"type": "local_shell_call", "call_id": "sh", "action": {"command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "sh", "output": "a b c"},
    {"type": "program", "call_id": "prog", "code": "f()"},
    {"type": "function_call", "call_id": "in", "name": "n", "caller": {"caller_id": "prog"}},
    {"type": "function_call_output", "call_id": "in", "output": "seven"},
    {"type": "program_output", "call_id": "prog", "result": "7"},
)


@st.composite
def odd_bodies(draw: st.DrawFn) -> Raw:
    """A body with missing or misplaced parts."""
    body: Raw = draw(st.one_of(anthropic_bodies(), responses_bodies()))
    key, odd = ("input", ODD_ITEMS) if "input" in body else ("messages", ODD_MESSAGES)
    for _ in range(draw(st.integers(1, 8))):
        place = draw(st.integers(0, len(body[key])))
        if draw(st.booleans()):
            del body[key][place : place + 1]
        else:
            number = draw(st.integers(0, len(odd) - 1))
            body[key][place:place] = odd[number : number + draw(st.integers(1, 4))]
    return body
