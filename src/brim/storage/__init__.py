"""What is kept between runs, in one SQLite file that only its user can read.

database   the file: opened, migrated, written in transactions
log        conversations: an event for all that happens, in the order in which it happened
fold       what events amount to
spending   what calls have cost, by day, model and project
facts      what the user wants remembered, and choices that last

Each event is written when it happens, so a process that is killed has lost nothing that was said.
Several processes use the file at once; one conversation belongs to one of them.
"""

from __future__ import annotations

from brim.storage.conversations import ConversationInfo, ConversationStore
from brim.storage.database import Database, state_folder
from brim.storage.events import ConversationEvent, ConversationState, replay_events
from brim.storage.facts import FactStore
from brim.storage.spending import SpendLog, Spent

__all__ = [
    "ConversationEvent",
    "ConversationInfo",
    "ConversationState",
    "ConversationStore",
    "Database",
    "FactStore",
    "SpendLog",
    "Spent",
    "replay_events",
    "state_folder",
]
