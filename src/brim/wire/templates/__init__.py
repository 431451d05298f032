"""Strict chat templates: what they refuse, and the form that they take.

brim plans on the conversation as it is. At the very end `shape` gives it the form that the target's
template renders: neighbours merged, steps told as text where there is no tool role, short turns
put in where two may not meet. What no rule asks for is not touched. `counted` makes a counter that
costs a message in that form, so that a plan that fits still fits after shaping; `accepts` says what
a template would refuse, and knows nothing of how `shape` goes about it.
"""

from brim.wire.templates.checking import accepts
from brim.wire.templates.counting import ShapedCounter, counted
from brim.wire.templates.rules import FREE, Rules, names, rules_for, rules_named
from brim.wire.templates.shaping import shape, short_id

__all__ = [
    "FREE",
    "Rules",
    "ShapedCounter",
    "accepts",
    "counted",
    "names",
    "rules_for",
    "rules_named",
    "shape",
    "short_id",
]
