"""Configuration: user file, project overlay, environment and flags, merged key by key.

keys       everything that can be set, with its default and its explanation
kinds      what may stand behind a key
tree       the keys as a tree, made from their classes
layers     one place that settings come from, read and checked
lines      on which line of a file a key stands
trust      the overlays that their user has agreed to
loading    all layers together
showing    the example, and values without their secrets
spelling   how keys, values and paths are written

Each layer is checked before anything of it counts, and all that is wrong is told at once. A
variable is named after its key, in capitals and with two underscores between the levels:
`BRIM_CONTEXT__POLICY=rolling`. Its value is text where the key wants text, and TOML elsewhere.
"""

from __future__ import annotations

from brim.config.example import read_explanations, redact, write_example
from brim.config.keys import (
    Config,
    ContextConfig,
    CostConfig,
    CountConfig,
    GatewayConfig,
    GoalConfig,
    McpConfig,
    MemoryConfig,
    ModelConfig,
    ProjectConfig,
    RoutingConfig,
    RoutingRule,
    ShellConfig,
    ShortViewConfig,
    SummaryConfig,
    UpstreamConfig,
)
from brim.config.kinds import FORMATS
from brim.config.layers import Setting, check_file
from brim.config.lines import key_lines
from brim.config.load import (
    DEFAULT,
    OVERLAY,
    ConfigFile,
    LoadedConfig,
    discover,
    load,
    project_file,
    user_file,
)
from brim.config.spelling import escape_unprintable, format_key, format_value, home_as_tilde
from brim.config.trust import Trust, digest

__all__ = [
    "DEFAULT",
    "FORMATS",
    "OVERLAY",
    "Config",
    "ConfigFile",
    "ContextConfig",
    "CostConfig",
    "CountConfig",
    "GatewayConfig",
    "GoalConfig",
    "LoadedConfig",
    "McpConfig",
    "MemoryConfig",
    "ModelConfig",
    "ProjectConfig",
    "RoutingConfig",
    "RoutingRule",
    "Setting",
    "ShellConfig",
    "ShortViewConfig",
    "SummaryConfig",
    "Trust",
    "UpstreamConfig",
    "check_file",
    "digest",
    "discover",
    "escape_unprintable",
    "format_key",
    "format_value",
    "home_as_tilde",
    "key_lines",
    "load",
    "project_file",
    "read_explanations",
    "redact",
    "user_file",
    "write_example",
]
