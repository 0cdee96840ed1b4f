-- renewal of a lease that is held
\set name 3000000000000 + random(1, :names)
\set owner 3000000000
SELECT dlock_renew(:name::text, :owner::text);
