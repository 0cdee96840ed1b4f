-- one row of a table that is guarded in some way
\set id random(1, 100000)
UPDATE guard_@table@ SET n = n + 1, token = 1 WHERE id = :id;
