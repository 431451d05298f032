"""A scripted model server for tests: `Scripted` and the replies that a script is made of."""

from brim.testing.script import Asked, Call, Fault, Say
from brim.testing.server import Answer, Script, Scripted

__all__ = ["Answer", "Asked", "Call", "Fault", "Say", "Script", "Scripted"]
