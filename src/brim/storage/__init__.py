"""State kept between runs, in SQLite files that only their user can read.

database           files: migrations and transactions
conversations      conversations, as logs of events
spend_log          the cost of every call, by day, model and project
facts              facts for the model, and settings that persist
calibration_store  measurements of servers and models

Each event is written when it happens, so a killed process loses nothing. Several processes may use
the file concurrently; a conversation is locked by one of them.
"""

from __future__ import annotations

from brim.config import state_folder
from brim.storage.conversations import (
    ConversationEvent,
    ConversationInfo,
    ConversationState,
    ConversationStore,
    replay_events,
)
from brim.storage.database import Database
from brim.storage.facts import FactStore
from brim.storage.spend_log import SpendAccount, SpendLog, lock_single, presume_abandoned

__all__ = [
    "ConversationEvent",
    "ConversationInfo",
    "ConversationState",
    "ConversationStore",
    "Database",
    "FactStore",
    "SpendAccount",
    "SpendLog",
    "lock_single",
    "presume_abandoned",
    "replay_events",
    "state_folder",
]
