"""Strict chat templates: what they reject, and how to adapt a conversation to them.

brim plans with the conversation as it is. At the very end, `apply_template` adapts it to the
target's template: consecutive turns of one role are merged, steps become text if there is no tool
role, short turns are inserted where two turns must not be adjacent. Nothing changes that no rule
requires. `wrap_counter` returns a counter that counts messages as they will be sent, so that a plan
that fits still fits afterwards. `find_violation` checks messages independently of `apply_template`.
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
