-- acquire + release, plain edition
\set name 1000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT plain.dlock_acquire(:name::text, :owner::text);
SELECT plain.dlock_release(:name::text, :owner::text);
