-- Fence marks in PL/pgSQL, for a server without dlock, such as a managed service:
-- psql -f fence_marks.sql.  The leases are on another server, which has dlock; the data
-- are here.  A table is guarded by
--
--	CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON report
--		EXECUTE FUNCTION fence_guard('nightly-report');
--
-- always by statement, so a partitioned table needs one on each partition as well.  A
-- transaction presents its token as it does to dlock_guard(): by
-- set_config('dlock.tokens', 'nightly-report=42', true), as the clients of src/clients do.
--
-- A transaction that passes at the mark locks the row of the mark FOR SHARE, to its end.
-- One that raises the mark updates the row, so it waits for those to end.  Hence no write
-- commits after one with a larger token.  Names of resources are letters, digits and any
-- of "_ / . : -".  Tokens are not compared with those that were granted: grant the right
-- to write only to roles that present honest ones.

CREATE TABLE fence_mark (
	resource text PRIMARY KEY,
	token bigint NOT NULL);

CREATE FUNCTION fence_pass(resource text, token bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	mark bigint;
BEGIN
	SELECT m.token INTO mark FROM fence_mark m WHERE m.resource = $1;
	IF mark IS NULL OR mark < $2 THEN
		INSERT INTO fence_mark AS m VALUES ($1, $2)
			ON CONFLICT ON CONSTRAINT fence_mark_pkey
			DO UPDATE SET token = excluded.token WHERE m.token < excluded.token;
	END IF;
	SELECT m.token INTO mark FROM fence_mark m WHERE m.resource = $1 FOR SHARE;
	IF $2 < mark THEN
		RAISE EXCEPTION 'fencing token % for resource "%" is stale', $2, $1
			USING ERRCODE = 'LK001', DETAIL = format('Token %s has been presented since.', mark);
	END IF;
END $$;

REVOKE ALL ON FUNCTION fence_pass FROM PUBLIC;

CREATE FUNCTION fence_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
	presented text;
BEGIN
	-- By row, it would return no row, and so drop each.
	IF TG_LEVEL = 'ROW' THEN
		RAISE EXCEPTION 'trigger "%" on table "%" must be FOR EACH STATEMENT', TG_NAME, TG_TABLE_NAME
			USING ERRCODE = 'trigger_protocol_violated', HINT = 'Create it again without FOR EACH ROW.';
	END IF;
	SELECT split_part(pair, '=', 2) INTO presented
		FROM regexp_split_to_table(current_setting('dlock.tokens', true), '[\s"]*,[\s"]*') part, btrim(part, '" ') pair
		WHERE split_part(pair, '=', 1) = TG_ARGV[0];
	IF presented IS NULL THEN
		RAISE EXCEPTION 'no fencing token presented for resource "%"', TG_ARGV[0]
			USING ERRCODE = 'LK003', DETAIL = format('Table "%s" is guarded.', TG_TABLE_NAME);
	END IF;
	PERFORM fence_pass(TG_ARGV[0], presented::bigint);
	RETURN NULL;
END $$;
