-- acquire + release, advisory locks of the session
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT pg_try_advisory_lock(:name::bigint);
SELECT pg_advisory_unlock(:name::bigint);
