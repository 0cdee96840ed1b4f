-- acquire + release, functions that do nothing
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT noop_acquire(:name::text, :owner::text);
SELECT noop_release(:name::text, :owner::text);
