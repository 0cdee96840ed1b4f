-- acquire of a lock that another owner holds:
-- psql -c "SELECT count(dlock_acquire((3000000000000 + i)::text, '3000000000', '1 h')) FROM generate_series(1, 100000) i"
-- pgbench -n -M prepared -c 8 -T 10 -D names=100000 -f refused.sql
-- psql -c "SELECT dlock_release_all('3000000000')"
\set name 3000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT dlock_acquire(:name::text, :owner::text);
