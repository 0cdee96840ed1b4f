-- acquire + release:
-- pgbench -n -M prepared -c 8 -T 10 -D names=100000 -f pair.sql
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT dlock_acquire(:name::text, :owner::text);
SELECT dlock_release(:name::text, :owner::text);
