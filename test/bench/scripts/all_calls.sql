-- one of a hundred locks by a statement of its own; the release of all after the hundredth
\set name 1000000000000 + :client_id * 1000000 + :step % 10000
\set step :step + 1
\set owner 2000000000 + :client_id
SELECT dlock_acquire(:name::text, :owner::text);
\if :step % 100 = 0
SELECT dlock_release_all(:owner::text);
\endif
