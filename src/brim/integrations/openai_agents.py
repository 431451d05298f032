"""OpenAI Agents SDK: `RunConfig(call_model_input_filter=BrimFilter(window=8192))`."""

from __future__ import annotations

from typing import Any, Unpack

from agents import Agent, RunContextWrapper, Session, TResponseInputItem, handoff
from agents.run import CallModelData, ModelInputData

from brim.integrations.adapter import AdapterSettings, MessageFitter


class BrimFilter:
    """Fits the input of every call; the run and its session keep all items."""

    def __init__(self, **settings: Unpack[AdapterSettings]) -> None:
        self._fitter = MessageFitter(**settings)

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        given, agent = data.model_data, data.agent
        tools = await agent.get_all_tools(RunContextWrapper(data.context))
        body = {"input": given.input, "instructions": given.instructions}
        model = getattr(agent.model, "model", agent.model)
        fitted = self._fitter.fit(body, model, [*map(_describe, tools), *_handoffs(agent)])
        return ModelInputData(input=fitted["input"], instructions=given.instructions)


def _describe(tool: Any) -> dict[str, object]:
    if not hasattr(tool, "params_json_schema"):  # a tool of the server
        return {"type": tool.name}
    fields = {"name": tool.name, "description": tool.description}
    return {"type": "function", **fields, "parameters": tool.params_json_schema}


def _handoffs(agent: Agent[Any]) -> list[dict[str, object]]:
    offers = [handoff(to) if isinstance(to, Agent) else to for to in agent.handoffs]
    return [
        {"type": "function", "name": to.tool_name, "description": to.tool_description,
         "parameters": to.input_json_schema}
        for to in offers
    ]  # fmt: skip


class BrimSession:
    """A session that stores all items and returns those that fit.

    It knows neither the instructions nor the tools of an agent; use a `BrimFilter` as well.
    """

    def __init__(self, session: Session, **settings: Unpack[AdapterSettings]) -> None:
        self.session = session
        """The session with the whole history."""
        self._fitter = MessageFitter(**settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items that fit."""
        items: list[TResponseInputItem] = await self.session.get_items(limit)
        return self._fitter.fit({"input": items})["input"] if items else items

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        await self.session.add_items(items)

    async def pop_item(self) -> TResponseInputItem | None:
        return await self.session.pop_item()

    async def clear_session(self) -> None:
        await self.session.clear_session()
