-- the same, an advisory lock of the session
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(1);
