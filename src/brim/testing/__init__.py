"""A scripted model server for tests: `Scripted` and the replies that a script is made of."""

from brim.testing.script import ErrorReply, ReceivedRequest, TextReply, ToolCallReply
from brim.testing.scripted_server import Script, ScriptedReply, ScriptedServer

__all__ = [
    "ErrorReply",
    "ReceivedRequest",
    "Script",
    "ScriptedReply",
    "ScriptedServer",
    "TextReply",
    "ToolCallReply",
]
