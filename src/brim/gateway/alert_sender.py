"""Sends alerts about caps as signed webhooks.

The signature follows the Standard Webhooks specification, for which there are libraries in most
languages: an HMAC-SHA256 of the id, the time and the body, with a secret that both sides have.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from brim.config import GatewayConfig
from brim.errors import InputError
from brim.gateway.accounts.alerts import (
    LEVELS,
    Alert,
    ClaimedAlert,
    Recipients,
    find_alerts,
)
from brim.gateway.accounts.caps import Cap, scope_parts
from brim.gateway.accounts.reservations import OVER_ANY_CAP
from brim.gateway.accounts.store import AccountStore
from brim.gateway.web_calls import call

LATE_SECONDS: Final = 600.0
"""For so long after a period its counters are still compared with the caps."""
MAX_CLAIMED: Final = 8
"""Alerts that are sent at the same time."""
_SECRET_PREFIX: Final = "whsec_"

log = logging.getLogger("brim.gateway")


class AlertSender:
    """Finds alerts that are due and delivers those of the outbox."""

    def __init__(self, settings: GatewayConfig, environment: Mapping[str, str]) -> None:
        self._url = settings.alert_url
        self._secret = b""
        self._rejecting: set[tuple[str, Cap]] = set()
        if self._url:
            self._secret = read_secret(environment.get(settings.alert_secret_env, ""))

    @property
    def is_enabled(self) -> bool:
        return bool(self._url)

    def note_rejection(self, scope: str, cap: Cap) -> None:
        """Remember that a cap had no room for a request."""
        if self._url:
            self._rejecting.add((scope, cap))

    async def run(self, store: AccountStore) -> None:
        """Add the alerts that are due to the outbox, and send what it has."""
        alerts = await self._find(store)
        if alerts:
            await store.add_alerts(alerts)
        self._rejecting.clear()
        while claimed := await store.claim_alerts(MAX_CLAIMED):
            await asyncio.gather(*(self._deliver(store, alert) for alert in claimed))

    async def _find(self, store: AccountStore) -> list[Alert]:
        caps = await store.caps()
        recipients = Recipients({key.id: key.name for key in await store.keys()})
        # Also the periods that have just ended: they may have reached a level since the last round.
        counters = {
            (one.scope, one.unit, one.period): one
            for ago in (LATE_SECONDS, 0.0)
            for one in await store.counters(ago, self._users_from(caps))
        }
        found = find_alerts(caps, counters.values(), self._rejecting, recipients, time.time())
        return list(found)

    def _users_from(self, caps: Mapping[str, Sequence[Cap]]) -> int:
        """Return the least that an end user has spent whose counters matter."""
        if any(scope_parts(scope)[0] == "user" for scope, _ in self._rejecting):
            return 0
        limits = [
            cap.limit
            for scope, listed in caps.items()
            if scope_parts(scope)[0] == "users"
            for cap in listed
            if not cap.is_rate
        ]
        return min(limits, default=2 * OVER_ANY_CAP) * LEVELS[0] // 100

    async def _deliver(self, store: AccountStore, alert: ClaimedAlert) -> None:
        try:
            await self._post(alert)
        except (OSError, ValueError) as error:
            fields = {"alert": alert.id, "attempt": alert.attempt, "reason": str(error)}
            log.warning("alert not delivered", extra={"fields": fields})
            return
        await store.finish_alert(alert.id)
        log.info("alert delivered", extra={"fields": {"alert": alert.id}})

    async def _post(self, alert: ClaimedAlert) -> None:
        """Send an alert. Raise OSError unless the receiver accepts it."""
        body = alert.body.encode()
        headers = sign(self._secret, alert.id, round(time.time()), body)
        await call(self._url, body, {**headers, "content-type": "application/json"})


def read_secret(text: str) -> bytes:
    """Return the key of signatures: base64 after `whsec_`, or the text itself.

    Raise `InputError` if it is missing or invalid.
    """
    if not text:
        raise InputError(
            "gateway.alert_url needs a secret. Set gateway.alert_secret_env to the name of an "
            "environment variable that contains it."
        )
    if not text.startswith(_SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        raise InputError("The secret of gateway.alert_secret_env is not valid base64.") from None


def sign(secret: bytes, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a signed webhook."""
    content = f"{id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
