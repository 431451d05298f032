-- Version 1: keys, caps, counters, leases and the ledger; and the steps of a claim as functions,
-- because a step is decided where the numbers are, in one round trip.
--
-- A claim counts in every counter that there is of its key, its project and all, in the day and
-- month of its own, whether or not it named a cap there. So a counter is right though caps come and
-- go, and one that is missing can be begun at any time, from the ledger and the leases.
--
-- Whoever has to wait takes locks in one order, so that nobody waits in a circle: what keeps
-- counters from being begun meanwhile, the name of a claim, leases by id, rows of the ledger by id,
-- counters by scope, period and unit.

DO $$ BEGIN
    -- An administrator may have made it, for a role that may not.
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
    hashed text COLLATE "C" NOT NULL UNIQUE,
    created double precision NOT NULL,
    revoked double precision
);
CREATE UNIQUE INDEX living_key_has_name ON brim.keys (name) WHERE revoked IS NULL;

CREATE TABLE brim.caps (
    scope text COLLATE "C" PRIMARY KEY,
    list json NOT NULL
);

-- The period is the very day or month. Half of each page is left free, so that a change of the same
-- few rows, thousands of times, stays on its page.
CREATE TABLE brim.counters (
    scope text COLLATE "C",
    period text COLLATE "C",
    unit text COLLATE "C",
    spent bigint NOT NULL,
    reserved bigint NOT NULL,
    PRIMARY KEY (scope, period, unit)
) WITH (fillfactor = 50);

CREATE TYPE brim.claim AS (
    id text, key text, key_name text, project text, model text, upstream text,
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
    input bigint NOT NULL,
    cached bigint NOT NULL,
    output bigint NOT NULL,
    written bigint NOT NULL,
    micro_dollars bigint NOT NULL,
    is_unpriced boolean NOT NULL,
    taken timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    is_forwarded boolean NOT NULL DEFAULT false
);
CREATE INDEX leases_by_end ON brim.leases (expires);

CREATE TABLE brim.ledger (
    id text COLLATE "C" PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    key_name text COLLATE "C" NOT NULL,
    project text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    upstream text COLLATE "C" NOT NULL,
    input bigint NOT NULL,
    cached bigint NOT NULL,
    output bigint NOT NULL,
    written bigint NOT NULL,
    micro_dollars bigint NOT NULL,
    is_unpriced boolean NOT NULL,
    taken timestamptz NOT NULL,
    day date NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('settled', 'presumed', 'refunded')),
    is_counted boolean NOT NULL
);
CREATE INDEX ledger_by_day ON brim.ledger (day, taken, id);
CREATE INDEX ledger_by_key ON brim.ledger (key, day);
CREATE INDEX ledger_by_project ON brim.ledger (project, day);

-- The one clock of all replicas.
CREATE FUNCTION brim.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$ SELECT clock_timestamp() $$;

CREATE FUNCTION brim.seconds(number double precision) RETURNS interval LANGUAGE sql IMMUTABLE AS
$$ SELECT number * interval '1 second' $$;

CREATE FUNCTION brim.day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS
$$ SELECT (at AT TIME ZONE 'UTC')::date $$;

CREATE FUNCTION brim.period_name(period text, at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE period
        WHEN 'day' THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD')
        WHEN 'month' THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM')
        ELSE 'total'
    END
$$;

-- The day or month that runs, with its first and its last day.
CREATE FUNCTION brim.span(
    period text, at timestamptz, OUT name text, OUT first date, OUT last date
) LANGUAGE sql STABLE AS $$
    SELECT brim.period_name(period, at), s.*
    FROM (SELECT brim.day(at) AS today) AS d, LATERAL (
        SELECT d.today, d.today WHERE period = 'day'
        UNION ALL
        SELECT date_trunc('month', d.today::timestamp)::date,
            (date_trunc('month', d.today::timestamp) + interval '1 month - 1 day')::date
        WHERE period = 'month'
        UNION ALL
        SELECT '-infinity', 'infinity' WHERE period = 'total'
    ) AS s
$$;

-- The scopes and the periods that a claim counts in.

CREATE FUNCTION brim.scopes(key text, project text) RETURNS text[] LANGUAGE sql IMMUTABLE AS
$$ SELECT ARRAY['key:' || key, 'project:' || project, 'all'] $$;

CREATE FUNCTION brim.periods(at timestamptz) RETURNS text[] LANGUAGE sql STABLE AS
$$ SELECT ARRAY[brim.period_name('day', at), brim.period_name('month', at), 'total'] $$;

CREATE FUNCTION brim.amount(unit text, tokens bigint, micro_dollars bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE unit WHEN 'tokens' THEN tokens ELSE micro_dollars END $$;

-- How much of a counter a lease has set aside; a lease that is none, nothing.
CREATE FUNCTION brim.held(counter brim.counters, lease brim.leases) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN lease.id IS NOT NULL
            AND counter.scope = ANY (brim.scopes(lease.key, lease.project))
            AND counter.period = ANY (brim.periods(lease.taken))
        THEN brim.amount(counter.unit, lease.input + lease.output, lease.micro_dollars)
        ELSE 0
    END
$$;

-- Counters

-- While a step moves counters none is begun: it would miss what the step is just doing.
CREATE FUNCTION brim.keep_counters() RETURNS void LANGUAGE sql VOLATILE AS
$$ SELECT pg_advisory_xact_lock_shared(1651665261, 1) $$;

CREATE FUNCTION brim.keep_all_out() RETURNS void LANGUAGE sql VOLATILE AS
$$ SELECT pg_advisory_xact_lock(1651665261, 1) $$;

-- What rows of the ledger came to: all of them, or those of a key or a project.
CREATE FUNCTION brim.spent_on(scope text, unit text, first date, last date) RETURNS bigint
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
        WHERE scope = 'all' AND r.day BETWEEN first AND last
    ) AS m
$$;

-- Begins counters that nobody asked for before, with all that they would have counted.
CREATE FUNCTION brim.begin_counters(scopes text[], units text[], periods text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
BEGIN
    PERFORM brim.keep_all_out();
    now := brim.clock();
    INSERT INTO brim.counters
    SELECT
        c.scope, p.name, c.unit,
        brim.spent_on(c.scope, c.unit, p.first, p.last),
        coalesce((SELECT sum(brim.held((c.scope, p.name, c.unit, 0, 0), l)) FROM brim.leases l), 0)
    FROM (SELECT DISTINCT * FROM unnest(scopes, units, periods)) AS c (scope, unit, period),
        brim.span(c.period, now) AS p
    WHERE NOT EXISTS (
        SELECT FROM brim.counters k
        WHERE k.scope = c.scope AND k.period = p.name AND k.unit = c.unit
    )
    ON CONFLICT DO NOTHING;
END $$;

-- What changes in the counters of a key and a project, on a day.
CREATE TYPE brim.move AS (
    key text, project text, taken timestamptz,
    tokens bigint, micro_dollars bigint, freed_tokens bigint, freed_micro_dollars bigint
);

CREATE FUNCTION brim.move(moves brim.move[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    change record;
BEGIN
    FOR change IN
        SELECT
            k.scope, k.period, k.unit,
            sum(brim.amount(k.unit, m.tokens, m.micro_dollars))::bigint AS came_to,
            sum(brim.amount(k.unit, m.freed_tokens, m.freed_micro_dollars))::bigint AS freed
        FROM unnest(moves) AS m JOIN brim.counters k
            ON k.scope = ANY (brim.scopes(m.key, m.project))
            AND k.period = ANY (brim.periods(m.taken))
        GROUP BY k.scope, k.period, k.unit
        ORDER BY k.scope, k.period, k.unit
    LOOP
        UPDATE brim.counters k
        SET spent = k.spent + change.came_to, reserved = k.reserved - change.freed
        WHERE k.scope = change.scope AND k.period = change.period AND k.unit = change.unit;
    END LOOP;
END $$;

-- Claims

-- The caps of a claim, with their counters. Two caps can have the same one.
CREATE TYPE brim.cap AS (scope text, unit text, period text, most bigint);

-- The first cap that has no room for a lease, by its place (from 1), and what stands against it
-- beside the old one that it takes the place of.
CREATE FUNCTION brim.full_cap(
    caps brim.cap[], lease brim.leases, old brim.leases,
    OUT place bigint, OUT spent bigint, OUT reserved bigint
) LANGUAGE sql VOLATILE AS $$
    SELECT c.nth, k.spent, k.reserved - brim.held(k, old)
    FROM unnest(caps) WITH ORDINALITY AS c (scope, unit, period, most, nth)
    JOIN brim.counters k ON k.scope = c.scope AND k.period = c.period AND k.unit = c.unit
    WHERE k.spent + k.reserved - brim.held(k, old) + brim.held(k, lease) > c.most
    ORDER BY c.nth
    LIMIT 1
$$;

-- Sets aside what a lease may come to, in all of its counters or in none; says whether it could.
CREATE FUNCTION brim.take(caps brim.cap[], lease brim.leases, old brim.leases)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    change record;
BEGIN
    FOR change IN
        SELECT
            k.scope, k.period, k.unit, brim.held(k, lease) - brim.held(k, old) AS amount,
            (
                SELECT coalesce(min(c.most), 9223372036854775807) FROM unnest(caps) AS c
                WHERE c.scope = k.scope AND c.period = k.period AND c.unit = k.unit
            ) AS most
        FROM brim.counters k
        WHERE k.scope = ANY (
                brim.scopes(lease.key, lease.project) || brim.scopes(old.key, old.project)
            )
            AND k.period = ANY (brim.periods(lease.taken) || brim.periods(old.taken))
        ORDER BY k.scope, k.period, k.unit
    LOOP
        UPDATE brim.counters k SET reserved = k.reserved + change.amount
        WHERE k.scope = change.scope AND k.period = change.period AND k.unit = change.unit
            AND k.spent + k.reserved + change.amount <= change.most;
        IF NOT FOUND THEN
            RAISE 'a cap has no room' USING ERRCODE = 'BRIM1';
        END IF;
    END LOOP;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'BRIM1' THEN
    RETURN false;  -- and the counters before it are as they were
END $$;

-- Says why a claim is refused, if it is: "unknown", or "full" with the place of the cap and what
-- stands against it; and whether leases are over that may hold some of the room. A claim whose
-- counters have to be begun first is "early".
CREATE FUNCTION brim.reserve(
    claim brim.claim,
    scopes text[], units text[], periods text[], mosts bigint[],
    lease double precision,
    OUT refusal text, OUT place bigint, OUT spent bigint, OUT reserved bigint,
    OUT is_overdue boolean, OUT at double precision
) LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
    old brim.leases;
    fresh brim.leases;
    caps brim.cap[];
BEGIN
    PERFORM brim.keep_counters();
    -- One that lost its connection comes again while the first may still be at work here.
    PERFORM pg_advisory_xact_lock(hashtextextended(claim.id, 0));
    now := brim.clock();
    at := extract(epoch FROM now);
    SELECT * INTO old FROM brim.leases l WHERE l.id = claim.id FOR UPDATE;
    IF old.expires <= now
        OR EXISTS (SELECT FROM brim.ledger r WHERE r.id = claim.id)
        OR NOT EXISTS (SELECT FROM brim.keys k WHERE k.id = claim.key AND k.revoked IS NULL)
    THEN
        refusal := 'unknown';
        is_overdue := coalesce(old.expires <= now, false);
        RETURN;
    END IF;
    caps := ARRAY(
        SELECT (c.scope, c.unit, brim.period_name(c.period, now), c.most)::brim.cap
        FROM unnest(scopes, units, periods, mosts) WITH ORDINALITY
            AS c (scope, unit, period, most, nth)
        ORDER BY c.nth
    );
    IF EXISTS (
        SELECT FROM unnest(caps) AS c WHERE NOT EXISTS (
            SELECT FROM brim.counters k
            WHERE k.scope = c.scope AND k.period = c.period AND k.unit = c.unit
        )
    ) THEN
        refusal := 'early';
        RETURN;
    END IF;
    -- What a first upstream was sent may have been charged, though a second one is asked now.
    SELECT claim.*, now, now + brim.seconds(lease), coalesce(old.is_forwarded, false) INTO fresh;
    WHILE NOT brim.take(caps, fresh, old) LOOP
        SELECT f.* INTO place, spent, reserved FROM brim.full_cap(caps, fresh, old) AS f;
        IF place IS NOT NULL THEN
            refusal := 'full';
            is_overdue := EXISTS (SELECT FROM brim.leases l WHERE l.expires <= now);
            RETURN;
        END IF;
        -- None is full any more: somebody has just made room.
    END LOOP;
    DELETE FROM brim.leases l WHERE l.id = claim.id;
    INSERT INTO brim.leases SELECT fresh.*;
END $$;

CREATE FUNCTION brim.forward(claim text, lease double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
BEGIN
    -- A second claim by this name may be about to take the place of the first: wait for that.
    PERFORM 1 FROM brim.leases l WHERE l.id = claim FOR UPDATE;
    UPDATE brim.leases l SET is_forwarded = true, expires = now + brim.seconds(lease)
    WHERE l.id = claim AND l.expires > now;
    RETURN FOUND;
END $$;

CREATE FUNCTION brim.renew(claims text[], lease double precision) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
BEGIN
    PERFORM 1 FROM brim.leases l WHERE l.id = ANY (claims) ORDER BY l.id FOR UPDATE;
    UPDATE brim.leases l SET expires = now + brim.seconds(lease)
    WHERE l.id = ANY (claims) AND l.expires > now;
END $$;

-- Books what requests came to; ids are given once each. What was never sent and is over stays as
-- it is: it will be given back.
CREATE FUNCTION brim.settle(
    ids text[], inputs bigint[], caches bigint[], outputs bigint[], writes bigint[],
    costs bigint[], unpriced boolean[], counted boolean[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
    moves brim.move[];
BEGIN
    PERFORM brim.keep_counters();
    PERFORM 1 FROM brim.leases l WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE;
    PERFORM 1 FROM brim.ledger r WHERE r.id = ANY (ids) AND r.state = 'presumed'
    ORDER BY r.id FOR UPDATE;
    WITH bills AS (
        SELECT *, b.input + b.output AS tokens
        FROM unnest(ids, inputs, caches, outputs, writes, costs, unpriced, counted) AS b (
            id, input, cached, output, written, micro_dollars, is_unpriced, is_counted
        )
    ),
    ended AS (
        DELETE FROM brim.leases l
        WHERE l.id = ANY (ids) AND (l.is_forwarded OR l.expires > now) RETURNING l.*
    ),
    booked AS (
        INSERT INTO brim.ledger
        SELECT
            l.id, l.key, l.key_name, l.project, l.model, l.upstream,
            b.input, b.cached, b.output, b.written, b.micro_dollars, b.is_unpriced,
            l.taken, brim.day(l.taken), 'settled', b.is_counted
        FROM ended l JOIN bills b ON b.id = l.id
    ),
    presumed AS (
        SELECT r.* FROM brim.ledger r WHERE r.id = ANY (ids) AND r.state = 'presumed'
    ),
    righted AS (
        UPDATE brim.ledger r SET
            input = b.input, cached = b.cached, output = b.output, written = b.written,
            micro_dollars = b.micro_dollars, is_unpriced = b.is_unpriced,
            state = 'settled', is_counted = b.is_counted
        FROM bills b WHERE r.id = b.id AND r.state = 'presumed'
    ),
    changes AS (
        SELECT
            l.key, l.project, brim.day(l.taken) AS day, l.taken, b.tokens, b.micro_dollars,
            l.input + l.output AS freed_tokens, l.micro_dollars AS freed_micro_dollars
        FROM ended l JOIN bills b ON b.id = l.id
        UNION ALL
        SELECT
            r.key, r.project, r.day, r.taken, b.tokens - r.input - r.output,
            b.micro_dollars - r.micro_dollars, 0, 0
        FROM presumed r JOIN bills b ON b.id = r.id
    )
    SELECT array_agg(m.one) INTO moves FROM (
        SELECT (
            c.key, c.project, min(c.taken), sum(c.tokens), sum(c.micro_dollars),
            sum(c.freed_tokens), sum(c.freed_micro_dollars)
        )::brim.move AS one
        FROM changes c GROUP BY c.key, c.project, c.day
    ) AS m;
    PERFORM brim.move(moves);
END $$;

-- Deals with some leases that are over, and says with how many. One that `waits` leaves out none
-- that somebody else is just dealing with.
CREATE FUNCTION brim.sweep(waits boolean, at_once integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
    ids text[];
    moves brim.move[];
BEGIN
    PERFORM brim.keep_counters();
    IF waits THEN
        ids := ARRAY(
            SELECT l.id FROM brim.leases l WHERE l.expires <= now
            ORDER BY l.id LIMIT at_once FOR UPDATE
        );
    ELSE
        ids := ARRAY(
            SELECT l.id FROM brim.leases l WHERE l.expires <= now
            ORDER BY l.id LIMIT at_once FOR UPDATE SKIP LOCKED
        );
    END IF;
    WITH ended AS (
        DELETE FROM brim.leases l WHERE l.id = ANY (ids)
        RETURNING l.*, l.is_forwarded::integer AS times
    ),
    booked AS (
        INSERT INTO brim.ledger
        SELECT
            l.id, l.key, l.key_name, l.project, l.model, l.upstream,
            l.input * l.times, l.cached * l.times, l.output * l.times, l.written * l.times,
            l.micro_dollars * l.times, l.is_unpriced AND l.is_forwarded,
            l.taken, brim.day(l.taken),
            CASE WHEN l.is_forwarded THEN 'presumed' ELSE 'refunded' END, false
        FROM ended l
    )
    SELECT array_agg(m.one) INTO moves FROM (
        SELECT (
            l.key, l.project, min(l.taken),
            sum((l.input + l.output) * l.times), sum(l.micro_dollars * l.times),
            sum(l.input + l.output), sum(l.micro_dollars)
        )::brim.move AS one
        FROM ended l GROUP BY l.key, l.project, brim.day(l.taken)
    ) AS m;
    PERFORM brim.move(moves);
    RETURN cardinality(ids);
END $$;
