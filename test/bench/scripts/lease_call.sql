-- one lease of many, looked up by name
\set name 1000000000000 + random(1, :names)
SELECT token FROM dlock_lease(:name::text);
