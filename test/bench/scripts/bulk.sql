-- all rows of a large table that is guarded in some way
UPDATE bulk_@table@ SET n = n + 1, token = 1;
