-- a hundred locks by one statement, each by itself, and their release
\set base 1000000000000 + :client_id * 1000000 + :step % 10000
\set step :step + 100
\set owner 2000000000 + :client_id
SELECT dlock_acquire_each(ARRAY(SELECT (:base::bigint + i)::text FROM generate_series(1, 100) i), array_fill(:owner::text, ARRAY[100]));
SELECT dlock_release_all(:owner::text);
