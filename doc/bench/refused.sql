-- acquire of a lock that another owner holds
\set name 3000000000000 + random(1, :names)
\set owner 2000000000 + :client_id
SELECT dlock_acquire(:name::text, :owner::text);
