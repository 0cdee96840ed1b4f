-- acquire + release, by the function for many
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT dlock_acquire_each(ARRAY[:name::text], ARRAY[:owner::text]);
SELECT dlock_release(:name::text, :owner::text);
