-- Version 1: keys, caps, counters, leases and the ledger; and the steps of a claim as functions,
-- because a step is decided where the numbers are, in one round trip.
--
-- Whoever has to wait takes locks in one order, so that nobody waits in a circle: the name of a
-- claim, leases by id, rows of the ledger by id, counters by name.

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

-- A name is scope/period/unit. Half of each page is left free, so that a change of the same few
-- rows, thousands of times, stays on its page.
CREATE TABLE brim.counters (
    name text COLLATE "C" PRIMARY KEY,
    spent bigint NOT NULL,
    reserved bigint NOT NULL
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
    counters text[] NOT NULL,
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
    counters text[] NOT NULL,
    day date NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('settled', 'presumed', 'refunded')),
    is_counted boolean NOT NULL
);
CREATE INDEX ledger_by_day ON brim.ledger (day, taken, id);

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

-- What a bill comes to in the unit of a counter.
CREATE FUNCTION brim.amount(counter text, tokens bigint, micro_dollars bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE split_part(counter, '/', -1) WHEN 'tokens' THEN tokens ELSE micro_dollars END $$;

-- Sets aside what a claim may come to. Says why not: "unknown", or "full" with the place of the cap
-- (from 1) and what stands against it; and whether leases are over that hold some of the room.
CREATE FUNCTION brim.reserve(
    claim brim.claim,
    scopes text[], mosts bigint[], units text[], periods text[],
    lease double precision,
    OUT refusal text, OUT place bigint, OUT has_spent bigint, OUT has_reserved bigint,
    OUT is_overdue boolean, OUT at double precision
) LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
    old brim.leases;
    names text[];
    change record;
BEGIN
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
    names := ARRAY(
        SELECT c.scope || '/' || brim.period_name(c.period, now) || '/' || c.unit
        FROM unnest(scopes, periods, units) WITH ORDINALITY AS c (scope, period, unit, nth)
        ORDER BY c.nth
    );
    LOOP
        BEGIN
            FOR change IN
                SELECT
                    m.name,
                    coalesce(min(m.most), 9223372036854775807) AS most,
                    max(m.wanted) - max(m.held) AS amount
                FROM (
                    SELECT
                        c.name, c.most,
                        brim.amount(c.name, claim.input + claim.output, claim.micro_dollars) AS wanted,
                        0 AS held
                    FROM unnest(names, mosts) AS c (name, most)
                    UNION ALL
                    SELECT
                        c.name, NULL, 0,
                        brim.amount(c.name, old.input + old.output, old.micro_dollars)
                    FROM unnest(old.counters) AS c (name)
                ) AS m
                GROUP BY m.name
                ORDER BY m.name COLLATE "C"
            LOOP
                INSERT INTO brim.counters AS c (name, spent, reserved)
                SELECT change.name, 0, change.amount WHERE change.amount <= change.most
                ON CONFLICT (name) DO UPDATE SET reserved = c.reserved + change.amount
                WHERE c.spent + c.reserved + change.amount <= change.most;
                IF NOT FOUND THEN
                    RAISE 'a cap has no room' USING ERRCODE = 'BRIM1';
                END IF;
            END LOOP;
            DELETE FROM brim.leases l WHERE l.id = claim.id;
            INSERT INTO brim.leases
            SELECT
                claim.*, now, ARRAY(SELECT DISTINCT unnest(names)), now + brim.seconds(lease), false;
            RETURN;
        EXCEPTION WHEN SQLSTATE 'BRIM1' THEN
            NULL;  -- what was set aside of it is undone
        END;
        SELECT c.nth, coalesce(k.spent, 0), coalesce(k.reserved, 0) - held.amount
        INTO place, has_spent, has_reserved
        FROM unnest(names, mosts) WITH ORDINALITY AS c (name, most, nth)
        LEFT JOIN brim.counters k ON k.name = c.name
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN c.name = ANY (old.counters)
                THEN brim.amount(c.name, old.input + old.output, old.micro_dollars)
                ELSE 0
            END AS amount
        ) AS held
        WHERE coalesce(k.spent + k.reserved, 0) - held.amount
            + brim.amount(c.name, claim.input + claim.output, claim.micro_dollars) > c.most
        ORDER BY c.nth
        LIMIT 1;
        -- Where none is full any more, somebody has just made room.
        EXIT WHEN place IS NOT NULL;
    END LOOP;
    refusal := 'full';
    is_overdue := EXISTS (SELECT FROM brim.leases l WHERE l.expires <= now);
END $$;

CREATE FUNCTION brim.forward(claim text, lease double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
BEGIN
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
    change record;
BEGIN
    PERFORM 1 FROM brim.leases l WHERE l.id = ANY (ids) ORDER BY l.id FOR UPDATE;
    PERFORM 1 FROM brim.ledger r WHERE r.id = ANY (ids) AND r.state = 'presumed'
    ORDER BY r.id FOR UPDATE;
    FOR change IN
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
                l.taken, l.counters, brim.day(l.taken), 'settled', b.is_counted
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
        )
        SELECT m.name, sum(m.freed)::bigint AS freed, sum(m.came_to)::bigint AS came_to
        FROM (
            SELECT
                c.name,
                brim.amount(c.name, l.input + l.output, l.micro_dollars) AS freed,
                brim.amount(c.name, b.tokens, b.micro_dollars) AS came_to
            FROM ended l JOIN bills b ON b.id = l.id, unnest(l.counters) AS c (name)
            UNION ALL
            SELECT
                c.name,
                0,
                brim.amount(c.name, b.tokens, b.micro_dollars)
                    - brim.amount(c.name, r.input + r.output, r.micro_dollars)
            FROM presumed r JOIN bills b ON b.id = r.id, unnest(r.counters) AS c (name)
        ) AS m
        GROUP BY m.name
        ORDER BY m.name COLLATE "C"
    LOOP
        UPDATE brim.counters c
        SET spent = c.spent + change.came_to, reserved = c.reserved - change.freed
        WHERE c.name = change.name;
    END LOOP;
END $$;

-- Deals with some leases that are over, and says with how many. One that `waits` leaves out none
-- that somebody else is just dealing with.
CREATE FUNCTION brim.sweep(waits boolean, at_once integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz := brim.clock();
    ids text[];
    change record;
BEGIN
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
    FOR change IN
        WITH ended AS (
            DELETE FROM brim.leases l WHERE l.id = ANY (ids) RETURNING l.*
        ),
        booked AS (
            INSERT INTO brim.ledger
            SELECT
                l.id, l.key, l.key_name, l.project, l.model, l.upstream,
                l.input * n.times, l.cached * n.times, l.output * n.times, l.written * n.times,
                l.micro_dollars * n.times, l.is_unpriced AND l.is_forwarded,
                l.taken, l.counters, brim.day(l.taken),
                CASE WHEN l.is_forwarded THEN 'presumed' ELSE 'refunded' END, false
            FROM ended l, LATERAL (SELECT l.is_forwarded::integer AS times) AS n
        )
        SELECT
            m.name,
            sum(m.amount)::bigint AS freed,
            coalesce(sum(m.amount) FILTER (WHERE m.is_forwarded), 0)::bigint AS came_to
        FROM (
            SELECT
                c.name, l.is_forwarded,
                brim.amount(c.name, l.input + l.output, l.micro_dollars) AS amount
            FROM ended l, unnest(l.counters) AS c (name)
        ) AS m
        GROUP BY m.name
        ORDER BY m.name COLLATE "C"
    LOOP
        UPDATE brim.counters c
        SET spent = c.spent + change.came_to, reserved = c.reserved - change.freed
        WHERE c.name = change.name;
    END LOOP;
    RETURN cardinality(ids);
END $$;
