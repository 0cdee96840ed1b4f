-- A queue of tasks as a program would write one for itself: put; capture by priority, which ends at
-- its deadline by predicate; finish, which fails with LK002 if the capture has been lost.
CREATE SCHEMA prototype; CREATE SEQUENCE prototype.token;
CREATE TABLE prototype.task (queue text NOT NULL, key text COLLATE "C" NOT NULL, state text COLLATE "C" NOT NULL DEFAULT 'ready', priority int NOT NULL DEFAULT 0,
    id bigint GENERATED ALWAYS AS IDENTITY, ready_at timestamptz NOT NULL DEFAULT '-infinity', owner text, token bigint,
    from_state text, on_timeout text, attempts int NOT NULL DEFAULT 0, finished_at timestamptz, error text, payload jsonb, PRIMARY KEY (queue, key))
    WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON prototype.task (queue, state, priority, id) WHERE owner IS NULL AND finished_at IS NULL;
CREATE INDEX ON prototype.task (queue, ready_at) WHERE owner IS NOT NULL AND finished_at IS NULL;
CREATE FUNCTION prototype.put(q text, k text, p jsonb = NULL, prio int = 0, delay interval = '0') RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE n int;
BEGIN
  INSERT INTO prototype.task (queue, key, payload, priority, ready_at) VALUES (q, k, p, prio, clock_timestamp() + delay) ON CONFLICT DO NOTHING;
  GET DIAGNOSTICS n = ROW_COUNT; RETURN n = 1;
END $$;
CREATE FUNCTION prototype.capture(q text, n int = 1, f text = 'ready', t text = 'working', o text = NULL, ttl interval = '30 s', late text = NULL)
RETURNS TABLE (key text, token bigint, payload jsonb, attempts int, expires_at timestamptz) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  WITH d AS (SELECT key FROM prototype.task WHERE queue = q AND owner IS NOT NULL AND finished_at IS NULL AND ready_at <= clock_timestamp() ORDER BY ready_at LIMIT 100 FOR UPDATE SKIP LOCKED)
    UPDATE prototype.task x SET owner = NULL, state = coalesce(x.on_timeout, x.from_state), error = 'timed out' FROM d WHERE x.queue = q AND x.key = d.key;
  RETURN QUERY WITH c AS MATERIALIZED (SELECT key FROM prototype.task WHERE queue = q AND state = f AND owner IS NULL AND finished_at IS NULL AND ready_at <= clock_timestamp()
      ORDER BY priority, id LIMIT n FOR UPDATE SKIP LOCKED)
    UPDATE prototype.task x SET state = t, from_state = f, on_timeout = late, owner = coalesce(o, pg_backend_pid()::text), token = nextval('prototype.token'),
      ready_at = clock_timestamp() + ttl, attempts = x.attempts + 1 FROM c WHERE x.queue = q AND x.key = c.key RETURNING x.key, x.token, x.payload, x.attempts, x.ready_at;
END $$;
CREATE FUNCTION prototype.finish(q text, k text, tok bigint, s text = 'done') RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE n int;
BEGIN
  UPDATE prototype.task SET state = s, finished_at = clock_timestamp() WHERE queue = q AND key = k AND token = tok AND owner IS NOT NULL AND finished_at IS NULL AND ready_at > clock_timestamp();
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 0 THEN RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = format('capture of task "%s" of queue "%s" with token %s is not held', k, q, tok); END IF;
  RETURN true;
END $$;
