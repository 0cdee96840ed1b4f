-- the same call of a function that does nothing
\set name 3000000000000 + random(1, :names)
\set owner 3000000000
SELECT noop_renew(:name::text, :owner::text);
