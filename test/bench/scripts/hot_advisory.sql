-- a hand-off of one advisory lock of the session that all clients want
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(1);
