"""Configuration: the user's file, the project's file, the environment and flags, merged by key.

schema       every setting, with its type and default
value_types  the types of values and how they are checked
sources      settings from one file, variable or flag, checked
load         all sources together, and the project files that the user has trusted
toml_text    keys and values as TOML text, and the lines that they are on

Every source is checked completely before any of its settings counts, and all problems are reported
together. A variable is named after its key, in capitals and with two underscores between the
levels: `BRIM_CONTEXT__POLICY=rolling`. Its value is plain text for a text key, and TOML otherwise.
"""

from __future__ import annotations

from brim.config.load import (
    DEFAULT,
    OVERLAY,
    ConfigFile,
    LoadedConfig,
    Trust,
    digest,
    discover,
    load,
    open_private,
    project_file,
    read_example,
    state_folder,
)
from brim.config.schema import (
    TEMPORARY_PROBLEMS,
    UPSTREAM_PROBLEMS,
    Config,
    ExportConfig,
    GatewayConfig,
    GoalConfig,
    McpConfig,
    ModelConfig,
    OidcConfig,
    RoutingConfig,
    UpstreamConfig,
    UpstreamProblem,
)
from brim.config.settings_sources import check_file, redact
from brim.config.toml_text import (
    escape_unprintable,
    format_value,
    home_as_tilde,
)

__all__ = [
    "DEFAULT",
    "OVERLAY",
    "TEMPORARY_PROBLEMS",
    "UPSTREAM_PROBLEMS",
    "Config",
    "ConfigFile",
    "ExportConfig",
    "GatewayConfig",
    "GoalConfig",
    "LoadedConfig",
    "McpConfig",
    "ModelConfig",
    "OidcConfig",
    "RoutingConfig",
    "Trust",
    "UpstreamConfig",
    "UpstreamProblem",
    "check_file",
    "digest",
    "discover",
    "escape_unprintable",
    "format_value",
    "home_as_tilde",
    "load",
    "open_private",
    "project_file",
    "read_example",
    "redact",
    "state_folder",
]
