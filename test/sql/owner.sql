-- Proves: an owner is a role and a name; owners of one name that act for different roles neither enter, keep out, end nor prolong each other's leases, and a member of a role comes to them only where it has none of its own.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
-- What must not wait would be seen to.
SET statement_timeout = '20 s';

CREATE ROLE regress_dlock_app;
CREATE ROLE regress_dlock_boss IN ROLE regress_dlock_app;
CREATE ROLE regress_dlock_guest;

-- waiting: another role's lease is another owner's, so it can be waited for
SET ROLE regress_dlock_app;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h') > 0 AS granted;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h') AS refused;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', wait => '10 ms') AS waited;
SELECT dlock_acquire_all('{owner-0,owner-1}', 'owner-w', '1 h', wait => '10 ms') AS waited;
SET ROLE regress_dlock_app;
\set VERBOSITY sqlstate
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', wait => '10 ms') AS deadlock;
\set VERBOSITY default

-- re-entry: only of the own one
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', reentry => 'count') > 0 AS again;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', reentry => how) AS refused FROM unnest('{count,return}'::text[]) how;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', reentry => 'return', wait => '10 ms') AS waited;
SELECT role, holds FROM dlock_leases WHERE name = 'owner-1';
-- not even by a member or a superuser: what counts is who asks
SET ROLE regress_dlock_boss;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', reentry => how) AS refused FROM unnest('{count,return}'::text[]) how;
RESET ROLE;
SELECT dlock_acquire('owner-1', 'owner-w', '1 h', reentry => how) AS refused FROM unnest('{count,return}'::text[]) how;

-- an election is lost, without an error
SELECT dlock_campaign('owner-1', 'owner-w', '1 h') AS lost;
SET ROLE regress_dlock_guest;
SELECT dlock_campaign('owner-1', 'owner-w', '1 h') AS lost, dlock_campaign('owner-1', 'owner-w', '1 h', payload => '{}') AS lost;
SELECT dlock_resign('owner-1', 'owner-w') AS resigned;

-- renew and release: the other one's lease is not there
SELECT dlock_renew('owner-1', 'owner-w', '2 h'), dlock_release('owner-1', 'owner-w'), dlock_renew_all('owner-w', '2 h'), dlock_release_all('owner-w');
SELECT role, holds, ttl FROM dlock_leases WHERE name = 'owner-1';

-- side by side: each has its own
SET ROLE regress_dlock_app;
SELECT dlock_release_all('owner-w');
SELECT dlock_acquire('owner-2', 'owner-w', '1 h', mode => 'shared') AS of_app \gset
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-2', 'owner-w', '1 h', mode => 'shared', reentry => 'return') AS of_guest \gset
SELECT :of_guest > :of_app AS another;
SELECT dlock_acquire('owner-2', 'owner-w', '1 h', mode => 'shared', reentry => 'count') = :of_guest AS own;
SELECT dlock_renew('owner-2', 'owner-w', '2 h');
SELECT role, holds, ttl FROM dlock_leases WHERE name = 'owner-2' ORDER BY token;
-- a conversion has to wait for the other one, and may not be made of it
SELECT dlock_convert('owner-2', :of_guest, 'exclusive', wait => '10 ms') AS waited;
\set VERBOSITY sqlstate
SELECT dlock_convert('owner-2', :of_app, 'NL');
\set VERBOSITY default
SELECT dlock_release_all('owner-w'), dlock_release_all('owner-w');
SELECT role, holds, ttl FROM dlock_leases WHERE name = 'owner-2';
SELECT dlock_release('owner-2', 'owner-w');
SET ROLE regress_dlock_app;
SELECT dlock_convert('owner-2', :of_app, 'exclusive') > :of_app AS converted;
SELECT dlock_release('owner-2', 'owner-w');

-- paths: the other one's intents are not the own way
SELECT dlock_acquire_path('owner-3/x', 'owner-w', '1 h') > 0 AS granted;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire_path('owner-3', 'owner-w', '1 h', wait => '10 ms') AS waited;
SET ROLE regress_dlock_app;
\set VERBOSITY sqlstate
SELECT dlock_acquire_path('owner-3', 'owner-w', '1 h', wait => '10 ms') AS deadlock;
\set VERBOSITY default
SELECT dlock_release_all('owner-w');

-- permits: one each
SELECT dlock_acquire('owner-4', 'owner-w', '1 h', permits => 2) > 0 AS granted;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-4', 'owner-w', '1 h', permits => 2) > 0 AS granted;
SELECT dlock_release('owner-4', 'owner-w'), dlock_release('owner-4', 'owner-w');
SET ROLE regress_dlock_app;
SELECT dlock_release('owner-4', 'owner-w');

-- lock delay and min_hold: only the own lock is opened
SELECT dlock_acquire('owner-5', 'owner-w', '1 ms', lock_delay => '1 h') > 0 AS granted;
SELECT pg_sleep(0.002);
SET ROLE regress_dlock_guest;
SELECT dlock_release('owner-5', 'owner-w');
SELECT state FROM dlock_leases WHERE name = 'owner-5';
SET ROLE regress_dlock_app;
SELECT dlock_release('owner-5', 'owner-w');
SELECT state FROM dlock_leases WHERE name = 'owner-5';

-- a member: its own lease first, and its role's only where it has none
SELECT dlock_acquire(n, 'owner-w', '1 h', mode => 'shared') > 0 AS of_app FROM unnest('{owner-6,owner-7}'::text[]) n;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-6', 'owner-w', '1 h', mode => 'shared') > 0 AS of_guest;
SET ROLE regress_dlock_boss;
SELECT dlock_acquire('owner-6', 'owner-w', '1 h', mode => 'shared') > 0 AS of_boss;
SELECT dlock_renew_all('owner-w', '2 h');
SELECT name, role, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name, token;
SELECT dlock_renew('owner-6', 'owner-w', '3 h'), dlock_renew('owner-7', 'owner-w', '3 h');
SELECT name, role, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name, token;
SELECT dlock_release_all('owner-w');
SELECT name, role, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name, token;
-- what is next is its role's, whoever else stands in front
SELECT dlock_renew_all('owner-w', '4 h'), dlock_renew('owner-6', 'owner-w', '5 h'), dlock_release('owner-7', 'owner-w');
SELECT name, role, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name, token;
SELECT dlock_release('owner-6', 'owner-w'), dlock_release('owner-6', 'owner-w'), dlock_release_all('owner-w');
SELECT name, role, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name, token;
RESET ROLE;
SELECT dlock_release_all('owner-w');

-- SET ROLE changes the owner that a session is; without a name, too
SELECT dlock_acquire('owner-8', ttl => '1 h') > 0 AS granted;
SET ROLE regress_dlock_guest;
SELECT dlock_acquire('owner-8', ttl => '1 h', reentry => 'return') AS refused, dlock_renew('owner-8', NULL::text) AS renewed, dlock_release('owner-8', NULL::text) AS released;
RESET ROLE;
SELECT dlock_acquire('owner-8', ttl => '1 h', reentry => 'return') > 0 AS same, dlock_release('owner-8', NULL::text) AS released;

-- a SECURITY DEFINER function is its owner
CREATE FUNCTION owner_acquire() RETURNS bigint LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT dlock_acquire('owner-9', 'owner-w', '1 h', reentry => 'return') $$;
ALTER FUNCTION owner_acquire() OWNER TO regress_dlock_app;
SELECT owner_acquire() AS token \gset
SELECT dlock_acquire('owner-9', 'owner-w', '1 h', reentry => 'return') AS refused, owner_acquire() = :token AS same;
SET ROLE regress_dlock_app;
SELECT dlock_acquire('owner-9', 'owner-w', '1 h', reentry => 'return') = :token AS same, dlock_release('owner-9', 'owner-w');
RESET ROLE;
DROP FUNCTION owner_acquire();

-- the tasks of a client are owners of their own; the client's name stands for all of them
SELECT name, dlock_acquire(name, owner, '1 h') > 0 AS granted
  FROM (VALUES ('owner-a', 'client'), ('owner-b', 'client#1'), ('owner-c', 'client#2'), ('owner-d', 'client#2#x'), ('owner-e', 'client2'), ('owner-f', 'clien'), ('owner-g', '#1')) v(name, owner);
SELECT dlock_acquire('owner-b', 'client') AS refused, dlock_renew('owner-b', 'client') AS renewed, dlock_release('owner-c', 'client#1') AS released;
SELECT dlock_renew_all('client', '2 h') AS client, dlock_renew_all('client#2', '3 h') AS task, dlock_renew_all('client#', '4 h') AS nobody;
SELECT name, owner, ttl FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name;
SELECT dlock_release_all('client#1') AS task, dlock_release_all('client') AS client;
SELECT name, owner FROM dlock_leases WHERE name LIKE 'owner-%' ORDER BY name;
SELECT dlock_release_all('client2'), dlock_release_all('clien'), dlock_release_all('#1');

SELECT name FROM dlock_leases WHERE name LIKE 'owner-%';
DROP ROLE regress_dlock_boss, regress_dlock_app, regress_dlock_guest;
