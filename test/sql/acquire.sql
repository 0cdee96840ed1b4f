-- Proves: a free name is granted once, to whoever comes first and in whatever form the call is made; everybody else gets NULL; names are compared in full.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'

-- one is granted; others, and the holder itself, are refused
SELECT dlock_acquire('acquire-1', 'acquire-alice', '1 h') > 0 AS granted;
SELECT dlock_acquire('acquire-1', 'acquire-bob', '1 h') AS refused;
SELECT dlock_acquire('acquire-1', 'acquire-alice', '1 h') AS refused_too;

-- a refusal changes nothing, not even with another ttl or payload
SELECT dlock_acquire('acquire-1', 'acquire-bob', '1 ms', payload => '{"who": "bob"}') AS refused;
SELECT owner, ttl, payload FROM dlock_leases WHERE name = 'acquire-1';

-- calls by position, by name, with all defaults, with every parameter
SELECT dlock_acquire('acquire-2') > 0 AS granted;
SELECT dlock_acquire(ttl => '1 h', owner => 'acquire-alice', name => 'acquire-3') > 0 AS granted;
SELECT dlock_acquire('acquire-4', 'acquire-alice', '1 h', '0', 'exclusive', NULL, 'deny', 'none', '0', '0', '[1]') > 0 AS granted;
SELECT dlock_acquire('acquire-4a', 'acquire-alice', '1 h', NULL, 'shared', NULL, 'count', 'session', '1 s', '1 ms', '[2]') > 0 AS granted;
SELECT dlock_acquire('acquire-4b', 'acquire-alice', '1 h', '1 min', permits => 2, reentry => 'return', bind => 'transaction') > 0 AS granted;
SELECT name, mode, permits, holds, state, bind, payload FROM dlock_leases WHERE name LIKE 'acquire-4%' ORDER BY name;
PREPARE acquire(text, text) AS SELECT dlock_acquire($1, $2, '1 h') > 0 AS granted;
EXECUTE acquire('acquire-5', 'acquire-alice');
EXECUTE acquire('acquire-5', 'acquire-alice');
DEALLOCATE acquire;

-- no owner is this session, as log_line_prefix writes it
SELECT l.owner = to_hex(floor(extract(epoch FROM a.backend_start))::bigint) || '.' || to_hex(a.pid) AS is_session
  FROM dlock_leases l, pg_stat_activity a
 WHERE l.name = 'acquire-2' AND a.pid = pg_backend_pid();

-- and is meant where a NULL owner renews and releases
SELECT dlock_renew('acquire-2', NULL, '1 h') AS renewed, dlock_renew_all(NULL) AS renewed_all,
       dlock_release('acquire-3', NULL) AS not_its_own, dlock_release('acquire-2', NULL) AS released, dlock_release_all(NULL) AS released_all;

-- no ttl is dlock.default_ttl, read at the call
SET dlock.default_ttl = '17min';
SELECT dlock_acquire('acquire-6', 'acquire-alice') > 0 AS granted;
SELECT dlock_acquire('acquire-7', 'acquire-alice', NULL) > 0 AS granted;
RESET dlock.default_ttl;
SELECT name, ttl FROM dlock_leases WHERE name IN ('acquire-6', 'acquire-7') ORDER BY name;

-- ten calls for one name in one statement: one grant
SELECT count(dlock_acquire('acquire-8', 'owner ' || i, '1 h')) AS grants FROM generate_series(1, 10) i;

-- a thousand names in one statement: each granted, each its own token
SELECT count(token), count(DISTINCT token)
  FROM (SELECT dlock_acquire('acquire-9-' || i, 'acquire-alice', '1 h') AS token FROM generate_series(1, 1000) i) s;
SELECT count(dlock_acquire('acquire-9-' || i, 'acquire-bob', '1 h')) AS grants FROM generate_series(1, 1000) i;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'acquire-9-%';

-- a name is its bytes: no folding, no trimming, no truncation, no hash
CREATE TEMP TABLE names (id int, name text);
INSERT INTO names VALUES
  (1, 'acquire-x'), (2, 'Acquire-x'), (3, 'acquire-x '), (4, ' acquire-x'), (5, E'acquire-x\n'),
  (6, 'acquire-' || repeat('x', 247)), (7, 'acquire-' || repeat('x', 246) || 'y'), (8, 'acquire-' || repeat('x', 246)),
  (9, E'acquire-\x01'), (10, 'acquire-''"\%_'), (11, 'acquire-;drop');
SELECT id, octet_length(name), dlock_acquire(name, 'acquire-alice', '1 h') > 0 AS granted FROM names ORDER BY id;
SELECT id, dlock_acquire(name, 'acquire-bob', '1 h') AS refused FROM names ORDER BY id;
SELECT count(*) FROM dlock_leases JOIN names USING (name);

-- so is an owner
SELECT dlock_acquire('acquire-10', repeat('o', 255), '1 h') > 0 AS granted;
SELECT dlock_renew('acquire-10', repeat('o', 254)) AS other, dlock_renew('acquire-10', repeat('o', 255)) AS own;

-- an owner may hold many locks, and be named as a lock is
SELECT dlock_acquire('acquire-11', 'acquire-11', '1 h') > 0 AS granted;

-- free again after a release; then the next caller gets it, with a larger token
SELECT dlock_acquire('acquire-12', 'acquire-alice', '1 h') AS first \gset
SELECT dlock_release('acquire-12', 'acquire-alice');
SELECT dlock_acquire('acquire-12', 'acquire-bob', '1 h') > :first AS larger;

-- free again at the deadline, whether or not anybody has cleaned up
SELECT dlock_acquire('acquire-13', 'acquire-alice', '1 microsecond') AS first \gset
SELECT pg_sleep(0.001);
SELECT dlock_acquire('acquire-13', 'acquire-bob', '1 h') > :first AS larger;

-- the longest ttl allowed
SELECT dlock_acquire('acquire-14', 'acquire-alice', '1 day') > 0 AS granted;
SELECT dlock_acquire('acquire-15', 'acquire-alice', '23:59:59.999999') > 0 AS granted;

-- the largest lease: name, owner and payload as long as they may be
SELECT dlock_acquire('acquire-' || repeat('n', 247), repeat('o', 255), '1 h',
                     payload => to_jsonb(repeat('p', 1000))) > 0 AS granted;
SELECT length(name), length(owner), length(payload #>> '{}') FROM dlock_leases WHERE name LIKE 'acquire-nnn%';

-- a payload is any jsonb, and JSON's null is one too
SELECT dlock_acquire('acquire-p1', 'acquire-alice', '1 h', payload => '{"b": [1, 2.50, "x"], "a": {"c": null}}') > 0 AS granted;
SELECT dlock_acquire('acquire-p2', 'acquire-alice', '1 h', payload => 'null') > 0 AS granted;
SELECT dlock_acquire('acquire-p3', 'acquire-alice', '1 h', payload => NULL) > 0 AS granted;
SELECT dlock_acquire('acquire-p4', 'acquire-alice', '1 h', payload => '{}') > 0 AS granted;
SELECT name, payload, payload IS NULL AS is_null FROM dlock_leases WHERE name LIKE 'acquire-p_' ORDER BY name;

SELECT dlock_release_all('acquire-alice') AS released, dlock_release_all('acquire-bob') AS released;
