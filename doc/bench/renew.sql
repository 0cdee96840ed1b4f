-- renewal of a lease that is held:
-- psql -c "SELECT count(dlock_acquire((3000000000000 + i)::text, '3000000000', '1 h')) FROM generate_series(1, 100000) i"
-- pgbench -n -M prepared -c 8 -T 10 -D names=100000 -f renew.sql
-- psql -c "SELECT dlock_release_all('3000000000')"
\set name 3000000000000 + random(1, :names)
\set owner 3000000000
SELECT dlock_renew(:name::text, :owner::text);
