-- a hand-off of one row that all clients want, locked until the end of the transaction
BEGIN;
SELECT 1 FROM hot_row WHERE id = 1 FOR UPDATE;
COMMIT;
