-- Version 1: keys, caps, the audit log, counters, leases and the ledger; and the operations on reservations as
-- functions, so that each is decided next to the data in one round trip.
--
-- A reservation counts in every existing counter of its key, its end user, its project and all keys, for its own
-- day, week and month, whether or not it names a cap there. So counters stay correct while caps change,
-- and a missing counter can be created at any time from the ledger and the leases.
--
-- Locks are always taken in this order, to avoid deadlocks: the lock on creating counters, the id of
-- a reservation, leases by id, rows of the ledger by id, rates by scope, counters by scope, period
-- and unit.

DO $$ BEGIN
    -- An administrator may have created it, for a role that must not.
    IF to_regnamespace('brim') IS NULL THEN
        CREATE SCHEMA brim;
    END IF;
END $$;

CREATE TABLE brim.migrations (
    version integer PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE brim.keys (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    project text COLLATE "C" NOT NULL,
    is_operator boolean NOT NULL,
    created double precision NOT NULL,
    revoked double precision,
    rules text NOT NULL
);
CREATE UNIQUE INDEX active_key_names ON brim.keys (name) WHERE revoked IS NULL;

-- The secrets of keys. A key has several while it is rotated, and all but the newest expire.
CREATE TABLE brim.secrets (
    hashed text COLLATE "C" PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    expires timestamptz NOT NULL DEFAULT 'infinity'
);

CREATE TABLE brim.caps (
    scope text COLLATE "C" PRIMARY KEY,
    list json NOT NULL
);

-- Who changed what. Rows are only added.
CREATE TABLE brim.audit (
    id text COLLATE "C" PRIMARY KEY,
    time double precision NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    details json NOT NULL
);
CREATE INDEX audit_by_time ON brim.audit (time);

-- The period is a day, a week, a month, or "total". Half of each page is left free, so that the many updates
-- of a few rows stay on their page.
CREATE TABLE brim.counters (
    scope text COLLATE "C",
    period text COLLATE "C",
    unit text COLLATE "C",
    spent bigint NOT NULL,
    reserved bigint NOT NULL,
    PRIMARY KEY (scope, period, unit)
) WITH (fillfactor = 50);

CREATE TYPE brim.reservation AS (
    id text, key text, key_name text, project text, model text, upstream text, end_user text,
    input bigint, cached bigint, output bigint, written bigint,
    micro_dollars bigint, is_unpriced boolean
);

CREATE TABLE brim.leases (
    id text COLLATE "C" PRIMARY KEY,
    key text NOT NULL,
    key_name text NOT NULL,
    project text NOT NULL,
    model text NOT NULL,
    upstream text NOT NULL,
    end_user text NOT NULL,
    input bigint NOT NULL,
    cached bigint NOT NULL,
    output bigint NOT NULL,
    written bigint NOT NULL,
    micro_dollars bigint NOT NULL,
    is_unpriced boolean NOT NULL,
    reserved_at timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    is_sent boolean NOT NULL DEFAULT false
);
CREATE INDEX leases_by_expiry ON brim.leases (expires);

CREATE TABLE brim.ledger (
    id text COLLATE "C" PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    key_name text COLLATE "C" NOT NULL,
    project text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    upstream text COLLATE "C" NOT NULL,
    end_user text COLLATE "C" NOT NULL,
    input bigint NOT NULL,
    cached bigint NOT NULL,
    output bigint NOT NULL,
    written bigint NOT NULL,
    micro_dollars bigint NOT NULL,
    is_unpriced boolean NOT NULL,
    reserved_at timestamptz NOT NULL,
    day date NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('settled', 'presumed', 'refunded')),
    is_estimated boolean NOT NULL
);
CREATE INDEX ledger_by_day ON brim.ledger (day, reserved_at, id);
CREATE INDEX ledger_by_key ON brim.ledger (key, day);
CREATE INDEX ledger_by_project ON brim.ledger (project, day);
CREATE INDEX ledger_by_user ON brim.ledger (key, end_user, day) WHERE end_user <> '';

-- What the rows of the ledger that were deleted sum up to, for total caps.
CREATE TABLE brim.pruned (
    key text COLLATE "C",
    project text COLLATE "C",
    end_user text COLLATE "C",
    micro_dollars bigint NOT NULL,
    tokens bigint NOT NULL,
    PRIMARY KEY (key, project, end_user)
);

-- The outbox. Delivered alerts stay until they expire, so that no gateway adds them again.
CREATE TABLE brim.alerts (
    id text COLLATE "C" PRIMARY KEY,
    body text NOT NULL,
    expires double precision,
    due timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    is_delivered boolean NOT NULL DEFAULT false
);

-- The clock of all replicas.
CREATE FUNCTION brim.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$ SELECT clock_timestamp() $$;

CREATE FUNCTION brim.seconds(number double precision) RETURNS interval LANGUAGE sql IMMUTABLE AS
$$ SELECT number * interval '1 second' $$;

CREATE FUNCTION brim.day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS
$$ SELECT (at AT TIME ZONE 'UTC')::date $$;

-- The periods of caps; any other is an error.
CREATE DOMAIN brim.period AS text CHECK (VALUE IN ('day', 'week', 'month', 'total'));

CREATE FUNCTION brim.period_name(period brim.period, at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE period
        WHEN 'day' THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD')
        -- The Monday of the week, after a letter.
        WHEN 'week' THEN to_char(date_trunc('week', at AT TIME ZONE 'UTC'), '"W"YYYY-MM-DD')
        WHEN 'month' THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM')
        WHEN 'total' THEN 'total'
    END
$$;

-- The current day, week or month, with its first and last day.
CREATE FUNCTION brim.span(
    period brim.period, at timestamptz, OUT name text, OUT first date, OUT last date
) LANGUAGE sql STABLE AS $$
    SELECT brim.period_name(period, at), s.*
    FROM (SELECT brim.day(at) AS today) AS d, LATERAL (
        SELECT d.today, d.today WHERE period = 'day'
        UNION ALL
        SELECT date_trunc('week', d.today::timestamp)::date,
            (date_trunc('week', d.today::timestamp) + interval '6 days')::date
        WHERE period = 'week'
        UNION ALL
        SELECT date_trunc('month', d.today::timestamp)::date,
            (date_trunc('month', d.today::timestamp) + interval '1 month - 1 day')::date
        WHERE period = 'month'
        UNION ALL
        SELECT '-infinity', 'infinity' WHERE period = 'total'
    ) AS s
$$;

-- The scopes and periods that a reservation counts in.

CREATE FUNCTION brim.scopes(key text, project text, end_user text) RETURNS text[]
LANGUAGE sql IMMUTABLE AS
$$ SELECT ARRAY['key:' || key, 'project:' || project, 'user:' || key || '/' || end_user, 'all'] $$;

CREATE FUNCTION brim.periods(at timestamptz) RETURNS text[] LANGUAGE sql STABLE AS
$$
    SELECT ARRAY[
        brim.period_name('day', at), brim.period_name('week', at), brim.period_name('month', at), 'total'
    ]
$$;

CREATE FUNCTION brim.amount(unit text, tokens bigint, micro_dollars bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE unit WHEN 'tokens' THEN tokens ELSE micro_dollars END $$;

-- The part of a counter that a lease reserves; 0 if the lease is null.
CREATE FUNCTION brim.reserved_by(counter brim.counters, lease brim.leases) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN lease.id IS NOT NULL
            AND counter.scope = ANY (brim.scopes(lease.key, lease.project, lease.end_user))
            AND counter.period = ANY (brim.periods(lease.reserved_at))
        THEN brim.amount(counter.unit, lease.input + lease.output, lease.micro_dollars)
        ELSE 0
    END
$$;

-- Counters

-- While an operation updates counters none may be created: it would miss that update.
CREATE FUNCTION brim.lock_counters_shared() RETURNS void LANGUAGE sql VOLATILE AS
$$ SELECT pg_advisory_xact_lock_shared(1651665261, 1) $$;

CREATE FUNCTION brim.lock_counters_exclusive() RETURNS void LANGUAGE sql VOLATILE AS
$$ SELECT pg_advisory_xact_lock(1651665261, 1) $$;

-- The sum of the ledger: of all rows, or those of a key or a project.
CREATE FUNCTION brim.sum_ledger(scope text, unit text, first date, last date) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(brim.amount(unit, m.input + m.output, m.micro_dollars)), 0)::bigint
    FROM (
        SELECT r.input, r.output, r.micro_dollars FROM brim.ledger r
        WHERE scope LIKE 'key:%' AND r.key = substr(scope, 5) AND r.day BETWEEN first AND last
        UNION ALL
        SELECT r.input, r.output, r.micro_dollars FROM brim.ledger r
        WHERE scope LIKE 'project:%' AND r.project = substr(scope, 9)
            AND r.day BETWEEN first AND last
        UNION ALL
        SELECT r.input, r.output, r.micro_dollars FROM brim.ledger r
        WHERE scope LIKE 'user:%' AND r.key = split_part(substr(scope, 6), '/', 1)
            AND r.end_user = substr(scope, strpos(scope, '/') + 1) AND r.day BETWEEN first AND last
        UNION ALL
        SELECT r.input, r.output, r.micro_dollars FROM brim.ledger r
        WHERE scope = 'all' AND r.day BETWEEN first AND last
        UNION ALL
        SELECT p.tokens, 0, p.micro_dollars FROM brim.pruned p
        WHERE first = '-infinity' AND scope = ANY (brim.scopes(p.key, p.project, p.end_user))
    ) AS m
$$;

-- Creates missing counters, with everything that they would have counted.
CREATE FUNCTION brim.create_counters(scopes text[], units text[], periods text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
BEGIN
    PERFORM brim.lock_counters_exclusive();
    now := brim.clock();
    INSERT INTO brim.counters
    SELECT
        c.scope, p.name, c.unit,
        brim.sum_ledger(c.scope, c.unit, p.first, p.last),
        coalesce((SELECT sum(brim.reserved_by((c.scope, p.name, c.unit, 0, 0), l)) FROM brim.leases l), 0)
    FROM (SELECT DISTINCT * FROM unnest(scopes, units, periods)) AS c (scope, unit, period),
        brim.span(c.period, now) AS p
    WHERE NOT EXISTS (
        SELECT FROM brim.counters k
        WHERE k.scope = c.scope AND k.period = p.name AND k.unit = c.unit
    )
    ON CONFLICT DO NOTHING;
END $$;

-- A change of the counters of a key and a project, on a day.
CREATE TYPE brim.counter_change AS (
    key text, project text, end_user text, reserved_at timestamptz,
    tokens bigint, micro_dollars bigint, freed_tokens bigint, freed_micro_dollars bigint
);

CREATE FUNCTION brim.update_counters(changes brim.counter_change[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    change record;
BEGIN
    FOR change IN
        SELECT
            k.scope, k.period, k.unit,
            sum(brim.amount(k.unit, m.tokens, m.micro_dollars))::bigint AS spent,
            sum(brim.amount(k.unit, m.freed_tokens, m.freed_micro_dollars))::bigint AS freed
        FROM unnest(changes) AS m JOIN brim.counters k
            ON k.scope = ANY (brim.scopes(m.key, m.project, m.end_user))
            AND k.period = ANY (brim.periods(m.reserved_at))
        GROUP BY k.scope, k.period, k.unit
        ORDER BY k.scope, k.period, k.unit
    LOOP
        UPDATE brim.counters k
        SET spent = k.spent + change.spent, reserved = k.reserved - change.freed
        WHERE k.scope = change.scope AND k.period = change.period AND k.unit = change.unit;
    END LOOP;
END $$;

-- Rates

-- Requests and tokens of scopes with a limit per minute, by the second of the reservation.
CREATE TABLE brim.rates (
    scope text COLLATE "C",
    second bigint,
    requests bigint NOT NULL,
    tokens bigint NOT NULL,
    PRIMARY KEY (scope, second)
) WITH (fillfactor = 50);

CREATE FUNCTION brim.second(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT floor(extract(epoch FROM at))::bigint $$;

CREATE FUNCTION brim.window_seconds() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 62 $$;

-- One transaction at a time reads and changes the rates of a scope.
CREATE FUNCTION brim.lock_rates(scopes text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    scope text;
BEGIN
    FOR scope IN SELECT DISTINCT s FROM unnest(scopes) AS s ORDER BY s LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended('rates ' || scope, 0));
    END LOOP;
END $$;

-- The reservations of a scope in flight.
CREATE FUNCTION brim.count_running(scope text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM brim.leases l
    WHERE scope = ANY (brim.scopes(l.key, l.project, l.end_user))
$$;

-- What counts against a rate limit of "requests" or "tokens" per minute, or "concurrent" requests,
-- without the old lease that is replaced.
CREATE FUNCTION brim.rate_used(scope text, unit text, old brim.leases, now timestamptz)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN unit = 'concurrent' THEN brim.count_running(scope)
        ELSE (
            SELECT coalesce(sum(CASE unit WHEN 'requests' THEN r.requests ELSE r.tokens END), 0)::bigint
            FROM brim.rates r
            WHERE r.scope = rate_used.scope AND r.second > brim.second(now) - brim.window_seconds()
        )
    END - CASE
        WHEN old.id IS NULL OR NOT scope = ANY (brim.scopes(old.key, old.project, old.end_user)) THEN 0
        WHEN unit = 'concurrent' THEN 1
        WHEN brim.second(old.reserved_at) <= brim.second(now) - brim.window_seconds() THEN 0
        WHEN unit = 'requests' THEN 1
        ELSE old.input + old.output
    END
$$;

-- Counts a request, or another number of requests, in the second of its reservation; only in scopes
-- that are counted already, unless they are new.
CREATE FUNCTION brim.count_rates(scopes text[], at timestamptz, number bigint, amount bigint)
RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM brim.rates r
    WHERE r.scope = ANY (scopes) AND r.second <= brim.second(at) - brim.window_seconds();
    INSERT INTO brim.rates AS r SELECT s, brim.second(at), number, amount FROM unnest(scopes) AS s
    ON CONFLICT (scope, second) DO UPDATE
    SET requests = r.requests + excluded.requests, tokens = r.tokens + excluded.tokens
$$;

-- Corrects what leases counted that have ended or are replaced: how many requests, and what their
-- tokens are now.
CREATE FUNCTION brim.correct_rates(changes brim.counter_change[], number bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    scopes text[];
BEGIN
    scopes := ARRAY(
        SELECT DISTINCT r.scope FROM unnest(changes) AS m JOIN brim.rates r
            ON r.scope = ANY (brim.scopes(m.key, m.project, m.end_user))
            AND r.second = brim.second(m.reserved_at)
    );
    IF scopes = '{}' THEN
        RETURN;
    END IF;
    PERFORM brim.lock_rates(scopes);
    UPDATE brim.rates r SET requests = r.requests + c.number, tokens = r.tokens + c.tokens
    FROM (
        SELECT s AS scope, brim.second(m.reserved_at) AS second,
            correct_rates.number * count(*) AS number,
            sum(m.tokens - m.freed_tokens)::bigint AS tokens
        FROM unnest(changes) AS m, unnest(brim.scopes(m.key, m.project, m.end_user)) AS s
        WHERE s = ANY (scopes)
        GROUP BY 1, 2
    ) AS c
    WHERE r.scope = c.scope AND r.second = c.second;
END $$;

-- Reservations

-- A cap of a reservation, named like its counter. Two caps can have the same counter.
CREATE TYPE brim.cap AS (scope text, unit text, period text, max_amount bigint);

-- The number (from 1) of the first cap without room for a lease, and what counts against it
-- without the old lease that it replaces.
CREATE FUNCTION brim.find_cap_reached(
    caps brim.cap[], lease brim.leases, old brim.leases,
    OUT cap_number bigint, OUT spent bigint, OUT reserved bigint
) LANGUAGE sql VOLATILE AS $$
    SELECT c.nth, k.spent, k.reserved - brim.reserved_by(k, old)
    FROM unnest(caps) WITH ORDINALITY AS c (scope, unit, period, max_amount, nth)
    JOIN brim.counters k ON k.scope = c.scope AND k.period = c.period AND k.unit = c.unit
    WHERE k.spent + k.reserved - brim.reserved_by(k, old) + brim.reserved_by(k, lease) > c.max_amount
    ORDER BY c.nth
    LIMIT 1
$$;

-- Adds the amount of a lease to all of its counters, or to none; returns whether there was room.
CREATE FUNCTION brim.try_reserve(caps brim.cap[], lease brim.leases, old brim.leases)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    change record;
BEGIN
    FOR change IN
        SELECT
            k.scope, k.period, k.unit, brim.reserved_by(k, lease) - brim.reserved_by(k, old) AS amount,
            (
                SELECT coalesce(min(c.max_amount), 9223372036854775807) FROM unnest(caps) AS c
                WHERE c.scope = k.scope AND c.period = k.period AND c.unit = k.unit
            ) AS max_amount
        FROM brim.counters k
        WHERE k.scope = ANY (
                brim.scopes(lease.key, lease.project, lease.end_user)
                || brim.scopes(old.key, old.project, old.end_user)
            )
            AND k.period = ANY (brim.periods(lease.reserved_at) || brim.periods(old.reserved_at))
        ORDER BY k.scope, k.period, k.unit
    LOOP
        UPDATE brim.counters k SET reserved = k.reserved + change.amount
        WHERE k.scope = change.scope AND k.period = change.period AND k.unit = change.unit
            AND k.spent + k.reserved + change.amount <= change.max_amount;
        IF NOT FOUND THEN
            RAISE 'a cap has no room' USING ERRCODE = 'BRIM1';
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'BRIM1' THEN
    RETURN false;  -- the earlier updates are rolled back
END $$;

-- Returns why a reservation is rejected, null if it is not: "invalid", or "cap_reached" with the
-- number of the cap and what counts against it, and whether there are expired leases that may
-- hold the room. "missing_counters" means that counters must be created first.
CREATE FUNCTION brim.reserve(
    reservation brim.reservation,
    scopes text[], units text[], periods text[], max_amounts bigint[],
    rate_scopes text[], rate_units text[], rate_limits bigint[],
    lease double precision, is_sent boolean,
    OUT rejection text, OUT cap_number bigint, OUT spent bigint, OUT reserved bigint,
    OUT has_expired boolean, OUT at double precision, OUT used bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
    old brim.leases;
    fresh brim.leases;
    caps brim.cap[];
    counted_scopes text[];
BEGIN
    PERFORM brim.lock_counters_shared();
    -- A client that lost its connection retries while the first call may still run.
    PERFORM pg_advisory_xact_lock(hashtextextended(reservation.id, 0));
    now := brim.clock();
    at := extract(epoch FROM now);
    SELECT * INTO old FROM brim.leases l WHERE l.id = reservation.id FOR UPDATE;
    IF old.expires <= now
        OR EXISTS (SELECT FROM brim.ledger r WHERE r.id = reservation.id)
        OR NOT EXISTS (SELECT FROM brim.keys k WHERE k.id = reservation.key AND k.revoked IS NULL)
    THEN
        rejection := 'invalid';
        has_expired := coalesce(old.expires <= now, false);
        RETURN;
    END IF;
    caps := ARRAY(
        SELECT (c.scope, c.unit, brim.period_name(c.period, now), c.max_amount)::brim.cap
        FROM unnest(scopes, units, periods, max_amounts) WITH ORDINALITY
            AS c (scope, unit, period, max_amount, nth)
        ORDER BY c.nth
    );
    IF EXISTS (
        SELECT FROM unnest(caps) AS c WHERE NOT EXISTS (
            SELECT FROM brim.counters k
            WHERE k.scope = c.scope AND k.period = c.period AND k.unit = c.unit
        )
    ) THEN
        rejection := 'missing_counters';
        RETURN;
    END IF;
    -- The first upstream got the request and may charge for it, even if a second one answers.
    SELECT reservation.*, now, now + brim.seconds(lease), is_sent OR coalesce(old.is_sent, false)
    INTO fresh;
    counted_scopes := ARRAY(
        SELECT DISTINCT s FROM unnest(rate_scopes, rate_units) AS c (s, unit) WHERE unit <> 'concurrent'
    );
    PERFORM brim.lock_rates(
        rate_scopes
        || CASE WHEN old.id IS NULL THEN '{}' ELSE brim.scopes(old.key, old.project, old.end_user) END
    );
    used := ARRAY(
        SELECT brim.rate_used(c.scope, c.unit, old, now)
        FROM unnest(rate_scopes, rate_units) WITH ORDINALITY AS c (scope, unit, nth) ORDER BY c.nth
    );
    SELECT min(c.nth) INTO cap_number
    FROM unnest(rate_units, rate_limits, used) WITH ORDINALITY AS c (unit, max_amount, amount, nth)
    WHERE c.amount + CASE c.unit WHEN 'tokens' THEN fresh.input + fresh.output ELSE 1 END > c.max_amount;
    IF cap_number IS NOT NULL THEN
        rejection := 'rate_reached';
        has_expired := EXISTS (SELECT FROM brim.leases l WHERE l.expires <= now);
        RETURN;
    END IF;
    WHILE NOT brim.try_reserve(caps, fresh, old) LOOP
        SELECT f.* INTO cap_number, spent, reserved FROM brim.find_cap_reached(caps, fresh, old) AS f;
        IF cap_number IS NOT NULL THEN
            rejection := 'cap_reached';
            has_expired := EXISTS (SELECT FROM brim.leases l WHERE l.expires <= now);
            RETURN;
        END IF;
        -- Another transaction has just made room.
    END LOOP;
    IF old.id IS NOT NULL THEN
        PERFORM brim.correct_rates(
            ARRAY[(
                old.key, old.project, old.end_user, old.reserved_at, 0, 0, old.input + old.output, 0
            )::brim.counter_change],
            -1
        );
    END IF;
    IF counted_scopes <> '{}' THEN
        PERFORM brim.count_rates(counted_scopes, now, 1, fresh.input + fresh.output);
    END IF;
    DELETE FROM brim.leases l WHERE l.id = reservation.id;
    INSERT INTO brim.leases SELECT fresh.*;
END $$;

CREATE FUNCTION brim.mark_sent(reservation text, lease double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
BEGIN
    -- A second reservation with this id may be about to replace the first: wait for it.
    PERFORM 1 FROM brim.leases l WHERE l.id = reservation FOR UPDATE;
    UPDATE brim.leases l SET is_sent = true, expires = now + brim.seconds(lease)
    WHERE l.id = reservation AND l.expires > now;
    RETURN FOUND;
END $$;

CREATE FUNCTION brim.renew(reservations text[], lease double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
BEGIN
    PERFORM 1 FROM brim.leases l WHERE l.id = ANY (reservations) ORDER BY l.id FOR UPDATE;
    UPDATE brim.leases l SET expires = now + brim.seconds(lease)
    WHERE l.id = ANY (reservations) AND l.expires > now;
END $$;

-- Records actual charges; each id comes once. A reservation that was never sent and has expired
-- stays as it is: it will be released.
CREATE FUNCTION brim.settle(
    ids text[], inputs bigint[], caches bigint[], outputs bigint[], writes bigint[],
    costs bigint[], unpriced boolean[], estimated boolean[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
    counter_changes brim.counter_change[];
BEGIN
    PERFORM brim.lock_counters_shared();
    PERFORM 1 FROM brim.leases l WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE;
    PERFORM 1 FROM brim.ledger r WHERE r.id = ANY (ids) AND r.state = 'presumed'
    ORDER BY r.id FOR UPDATE;
    WITH charges AS (
        SELECT *, b.input + b.output AS tokens
        FROM unnest(ids, inputs, caches, outputs, writes, costs, unpriced, estimated) AS b (
            id, input, cached, output, written, micro_dollars, is_unpriced, is_estimated
        )
    ),
    ended AS (
        DELETE FROM brim.leases l
        WHERE l.id = ANY (ids) AND (l.is_sent OR l.expires > now) RETURNING l.*
    ),
    recorded AS (
        INSERT INTO brim.ledger
        SELECT
            l.id, l.key, l.key_name, l.project, l.model, l.upstream, l.end_user,
            b.input, b.cached, b.output, b.written, b.micro_dollars, b.is_unpriced,
            l.reserved_at, brim.day(l.reserved_at), 'settled', b.is_estimated
        FROM ended l JOIN charges b ON b.id = l.id
    ),
    presumed AS (
        SELECT r.* FROM brim.ledger r WHERE r.id = ANY (ids) AND r.state = 'presumed'
    ),
    corrected AS (
        UPDATE brim.ledger r SET
            input = b.input, cached = b.cached, output = b.output, written = b.written,
            micro_dollars = b.micro_dollars, is_unpriced = b.is_unpriced,
            state = 'settled', is_estimated = b.is_estimated
        FROM charges b WHERE r.id = b.id AND r.state = 'presumed'
    ),
    changes AS (
        SELECT
            l.key, l.project, l.end_user, brim.day(l.reserved_at) AS day, l.reserved_at,
            b.tokens, b.micro_dollars,
            l.input + l.output AS freed_tokens, l.micro_dollars AS freed_micro_dollars
        FROM ended l JOIN charges b ON b.id = l.id
        UNION ALL
        SELECT
            r.key, r.project, r.end_user, r.day, r.reserved_at, b.tokens - r.input - r.output,
            b.micro_dollars - r.micro_dollars, 0, 0
        FROM presumed r JOIN charges b ON b.id = r.id
    )
    SELECT array_agg(m.one) INTO counter_changes FROM (
        SELECT (
            c.key, c.project, c.end_user, min(c.reserved_at), sum(c.tokens), sum(c.micro_dollars),
            sum(c.freed_tokens), sum(c.freed_micro_dollars)
        )::brim.counter_change AS one
        FROM changes c GROUP BY c.key, c.project, c.end_user, c.day, brim.second(c.reserved_at)
    ) AS m;
    PERFORM brim.correct_rates(counter_changes, 0);
    PERFORM brim.update_counters(counter_changes);
END $$;

-- Ends some expired leases, and returns how many. With `waits`, also those that another transaction
-- has locked.
CREATE FUNCTION brim.sweep(waits boolean, batch integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
    ids text[];
    counter_changes brim.counter_change[];
BEGIN
    PERFORM brim.lock_counters_shared();
    IF waits THEN
        ids := ARRAY(
            SELECT l.id FROM brim.leases l WHERE l.expires <= now
            ORDER BY l.id LIMIT batch FOR UPDATE
        );
    ELSE
        ids := ARRAY(
            SELECT l.id FROM brim.leases l WHERE l.expires <= now
            ORDER BY l.id LIMIT batch FOR UPDATE SKIP LOCKED
        );
    END IF;
    WITH ended AS (
        DELETE FROM brim.leases l WHERE l.id = ANY (ids)
        RETURNING l.*, l.is_sent::integer AS times
    ),
    recorded AS (
        INSERT INTO brim.ledger
        SELECT
            l.id, l.key, l.key_name, l.project, l.model, l.upstream, l.end_user,
            l.input * l.times, l.cached * l.times, l.output * l.times, l.written * l.times,
            l.micro_dollars * l.times, l.is_unpriced AND l.is_sent,
            l.reserved_at, brim.day(l.reserved_at),
            CASE WHEN l.is_sent THEN 'presumed' ELSE 'refunded' END, false
        FROM ended l
    )
    SELECT array_agg(m.one) INTO counter_changes FROM (
        SELECT (
            l.key, l.project, l.end_user, min(l.reserved_at),
            sum((l.input + l.output) * l.times), sum(l.micro_dollars * l.times),
            sum(l.input + l.output), sum(l.micro_dollars)
        )::brim.counter_change AS one
        FROM ended l GROUP BY l.key, l.project, l.end_user, brim.second(l.reserved_at)
    ) AS m;
    PERFORM brim.correct_rates(counter_changes, 0);
    PERFORM brim.update_counters(counter_changes);
    RETURN cardinality(ids);
END $$;

-- Upkeep

-- Deletes some rows of earlier days, and returns how many.
CREATE FUNCTION brim.prune(before date, batch integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    PERFORM brim.lock_counters_shared();
    WITH gone AS (
        DELETE FROM brim.ledger r WHERE r.id IN (
            SELECT o.id FROM brim.ledger o WHERE o.day < before LIMIT batch FOR UPDATE SKIP LOCKED
        ) RETURNING r.*
    ),
    added AS (
        INSERT INTO brim.pruned AS p
        SELECT g.key, g.project, g.end_user, sum(g.micro_dollars), sum(g.input + g.output)
        FROM gone g GROUP BY g.key, g.project, g.end_user ORDER BY g.key, g.project, g.end_user
        ON CONFLICT (key, project, end_user) DO UPDATE SET
            micro_dollars = p.micro_dollars + excluded.micro_dollars,
            tokens = p.tokens + excluded.tokens
    )
    SELECT count(*) INTO number FROM gone;
    RETURN number;
END $$;

-- Adds rows of another store. All counters are summed again when they are needed.
CREATE FUNCTION brim.load_rows(rows json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM brim.lock_counters_exclusive();
    INSERT INTO brim.ledger SELECT * FROM json_populate_recordset(null::brim.ledger, rows)
    ON CONFLICT DO NOTHING;
    DELETE FROM brim.counters;
END $$;

CREATE FUNCTION brim.load_pruned(sums json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM brim.lock_counters_exclusive();
    DELETE FROM brim.pruned;
    INSERT INTO brim.pruned SELECT * FROM json_populate_recordset(null::brim.pruned, sums);
    DELETE FROM brim.counters;
END $$;
