-- What the baselines need.  psql variables: module, the path of the no-op
-- module; names, how many names the scripts choose from.

-- No-op functions with the argument lists of dlock_acquire, dlock_renew and
-- dlock_release.
CREATE FUNCTION noop_acquire(
    name text,
    owner text DEFAULT NULL,
    ttl interval DEFAULT NULL,
    wait interval DEFAULT '0',
    mode text DEFAULT 'exclusive',
    permits integer DEFAULT NULL,
    reentry text DEFAULT 'deny',
    bind text DEFAULT 'none',
    lock_delay interval DEFAULT '0',
    min_hold interval DEFAULT '0',
    payload jsonb DEFAULT NULL)
    RETURNS bigint
    AS :'module', 'dlock_noop_token'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION noop_renew(name text, owner text DEFAULT NULL, ttl interval DEFAULT NULL)
    RETURNS boolean
    AS :'module', 'dlock_noop_true'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE FUNCTION noop_release(name text, owner text DEFAULT NULL)
    RETURNS boolean
    AS :'module', 'dlock_noop_true'
    LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- A hand-made lease table whose rows are deleted at release.  The token comes
-- from a sequence, since nothing else outlives the row.
CREATE TABLE lease_delete (
    name text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    expires_at timestamptz NOT NULL);
CREATE SEQUENCE lease_delete_token;

-- One whose rows stay and count the tokens.  It is measured as it is after
-- each name has been used once.
CREATE TABLE lease_update (
    name text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    expires_at timestamptz NOT NULL);
INSERT INTO lease_update
    SELECT (1000000000000 + i)::text, '', 0, '-infinity'
      FROM generate_series(1, :names) i;

-- What is locked by SELECT FOR UPDATE.
CREATE TABLE hot_row (id integer PRIMARY KEY);
INSERT INTO hot_row VALUES (1);
