-- Version 1: keys, caps, the audit log, counters, leases and the ledger.
--
-- A reservation counts in every existing counter of its key, its end user, its project and all keys, for its own
-- day and month, whether or not it names a cap there. So counters stay correct while caps change,
-- and a missing counter can be created at any time from the ledger and the leases.

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    project TEXT NOT NULL,
    operator INTEGER NOT NULL,
    created REAL NOT NULL,
    revoked REAL,
    rules TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX active_keys ON keys (name) WHERE revoked IS NULL;

-- The secrets of keys. A key has several while it is rotated, and all but the newest expire.
CREATE TABLE secrets (
    hash TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    expires REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE caps (
    scope TEXT PRIMARY KEY,
    list TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who changed what. Rows are only added.
CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    time REAL NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_by_time ON audit (time);

-- The period is a day, a month, or "total".
CREATE TABLE counters (
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    unit TEXT NOT NULL,
    spent INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    PRIMARY KEY (scope, period, unit)
) STRICT, WITHOUT ROWID;

-- Requests and tokens of scopes with a limit per minute, by the second of the reservation.
CREATE TABLE rates (
    scope TEXT NOT NULL,
    second INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (scope, second)
) STRICT, WITHOUT ROWID;

-- Only reservations in flight, so the table is small: an index on `expires` would cost more at
-- every write than a scan costs now and then.
CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    expires REAL NOT NULL,
    sent INTEGER NOT NULL,
    time REAL NOT NULL,
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    key_name TEXT NOT NULL,
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    user TEXT NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    output INTEGER NOT NULL,
    written INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    unpriced INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Ordered by time: new rows share a few pages, and a day is one range.
CREATE TABLE ledger (
    time REAL NOT NULL,
    id TEXT NOT NULL UNIQUE,
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    key_name TEXT NOT NULL,
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    user TEXT NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    output INTEGER NOT NULL,
    written INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    unpriced INTEGER NOT NULL,
    state TEXT NOT NULL,
    estimated INTEGER NOT NULL,
    PRIMARY KEY (time, id)
) STRICT, WITHOUT ROWID;

-- A new cap counts what was spent before it was set.
CREATE INDEX ledger_by_key ON ledger (key, time);
CREATE INDEX ledger_by_project ON ledger (project, time);
CREATE INDEX ledger_by_user ON ledger (key, user, time) WHERE user <> '';

-- What the rows of the ledger that were deleted sum up to, for total caps.
CREATE TABLE pruned (
    key TEXT NOT NULL,
    project TEXT NOT NULL,
    user TEXT NOT NULL,
    cost INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (key, project, user)
) STRICT, WITHOUT ROWID;

-- The outbox. Delivered alerts stay until they expire, so that no gateway adds them again.
CREATE TABLE alerts (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    expires REAL,
    due REAL NOT NULL,
    attempts INTEGER NOT NULL,
    delivered INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
