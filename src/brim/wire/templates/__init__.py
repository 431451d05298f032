"""Strict chat templates: what they refuse, and the form that they take.

brim plans on the conversation as it is. At the very end `shape` gives it the form that the target's
template renders: neighbours merged, steps told as text where there is no tool role, short turns
put in where two may not meet. What no rule asks for is not touched. `counted` makes a counter that
costs a message in that form, so that a plan that fits still fits after shaping; `accepts` says what
a template would refuse, and knows nothing of how `shape` goes about it.
"""

from brim.wire.templates.adapter import apply_template, make_short_id
from brim.wire.templates.template_counter import TemplateCounter, wrap_counter
from brim.wire.templates.template_rules import (
    PERMISSIVE,
    TemplateRules,
    find_rules,
    list_rule_names,
    rules_for,
)
from brim.wire.templates.validator import find_violation

__all__ = [
    "PERMISSIVE",
    "TemplateCounter",
    "TemplateRules",
    "apply_template",
    "find_rules",
    "find_violation",
    "list_rule_names",
    "make_short_id",
    "rules_for",
    "wrap_counter",
]
