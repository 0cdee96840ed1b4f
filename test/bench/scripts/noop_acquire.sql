-- the same call of a function that does nothing
\set name 3000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT noop_acquire(:name::text, :owner::text);
