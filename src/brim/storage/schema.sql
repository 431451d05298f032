CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    folder TEXT NOT NULL,
    model TEXT NOT NULL,
    title TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    updated REAL NOT NULL,
    turns INTEGER NOT NULL DEFAULT 0,
    state TEXT,
    draft TEXT
);

CREATE TABLE events (
    session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    number INTEGER NOT NULL,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;

CREATE TABLE spending (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    day TEXT NOT NULL,
    session TEXT NOT NULL,
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    category TEXT NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    written INTEGER NOT NULL,
    output INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    cost TEXT NOT NULL,
    unknown INTEGER NOT NULL,
    estimated INTEGER NOT NULL
);

CREATE INDEX spending_by_day ON spending (day);

CREATE TABLE facts (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    time REAL NOT NULL
);

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
