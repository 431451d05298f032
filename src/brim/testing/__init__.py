"""A scripted model server for tests: `ScriptedServer` and the replies of a script."""

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
