-- one lease of many, as the view shows it
\set name 1000000000000 + random(1, :names)
SELECT token FROM dlock_leases WHERE name = :name::text;
