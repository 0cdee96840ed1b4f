/* sql/patterns.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

-- What is made of leases and rows: tasks, time slots, elections and groups.

----------------------------------------------------------------------------
-- Arguments
----------------------------------------------------------------------------

-- For functions that set the search_path.
CREATE FUNCTION _dlock.check_text(value pg_catalog.text, what pg_catalog.text, longest pg_catalog.int4) RETURNS pg_catalog.bool
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF value IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = format('%s must not be null', what);
    ELSIF value = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s must not be empty', what);
    ELSIF octet_length(value) > longest THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s is too long', what),
            DETAIL = format('It has %s bytes; the limit is %s.', octet_length(value), longest);
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION _dlock.check_text(pg_catalog.text, pg_catalog.text, pg_catalog.int4) IS 'refuse a text that is null, empty or too long';

CREATE FUNCTION _dlock.check_span(span pg_catalog.interval, what pg_catalog.text, longest pg_catalog.interval) RETURNS pg_catalog.interval
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF span IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = format('parameter "%s" must not be null', what);
    ELSIF span < interval '0' OR span > longest THEN
        RAISE invalid_parameter_value USING MESSAGE = format('parameter "%s" is out of range', what),
            DETAIL = format('The value is %s; the limit is %s.', span, longest), HINT = 'Pass a shorter span, and no negative one.';
    END IF;
    RETURN span;
END $$;
COMMENT ON FUNCTION _dlock.check_span(pg_catalog.interval, pg_catalog.text, pg_catalog.interval) IS 'refuse a span that is null, negative or too long';

CREATE FUNCTION _dlock.check_token(token pg_catalog.int8) RETURNS pg_catalog.int8
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF token IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'fencing token must not be null';
    ELSIF token <= 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'fencing token must be greater than zero',
            DETAIL = format('The value is %s.', token), HINT = 'Pass the token that the call returned.';
    END IF;
    RETURN token;
END $$;
COMMENT ON FUNCTION _dlock.check_token(pg_catalog.int8) IS 'refuse what cannot be a token';

----------------------------------------------------------------------------
-- Tasks
----------------------------------------------------------------------------

-- Tasks are rows, and all functions on them run as their caller.  Row security lets a role
-- use the queues that belong to it, by hand, too.
CREATE TABLE _dlock.task_queue (
    queue pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    queue_id pg_catalog.int4 GENERATED ALWAYS AS IDENTITY UNIQUE,
    role pg_catalog.regrole NOT NULL,
    max_attempts pg_catalog.int4,
    retry_delay pg_catalog.interval NOT NULL,
    transitions pg_catalog.text[]);
COMMENT ON TABLE _dlock.task_queue IS 'task queues, their owners and the transitions that they allow';
SELECT pg_catalog.pg_extension_config_dump('_dlock.task_queue', '');
SELECT pg_catalog.pg_extension_config_dump('_dlock.task_queue_queue_id_seq', '');
ALTER TABLE _dlock.task_queue ENABLE ROW LEVEL SECURITY;
CREATE POLICY readers ON _dlock.task_queue FOR SELECT USING (true);
CREATE POLICY creators ON _dlock.task_queue FOR INSERT WITH CHECK (pg_catalog.pg_has_role(role, 'USAGE'));
CREATE POLICY users ON _dlock.task_queue FOR DELETE USING (pg_catalog.pg_has_role(role, 'USAGE'));
REVOKE ALL ON _dlock.task_queue FROM PUBLIC;
GRANT SELECT, INSERT, DELETE ON _dlock.task_queue TO PUBLIC;

-- A captured task is in the state "working" up to expires_at.  From then on it is in "state",
-- as any other task, and from ready_at on it can be captured.  So no task has to be changed
-- when a time has come, and one index serves all captures.
--
-- "done" is the token with which the task was finished, 0 before that: finished tasks do
-- not stand in the way of a new one with their key.
--
-- VACUUM does not truncate the table, which begins with some 70 pages: the planner would prefer to
-- read a smaller table as a whole, and a session keeps its plans while the table grows.  (For an array
-- of places that it does not know it assumes ten, at a random_page_cost of 4 each.)
CREATE TABLE _dlock.task (
    queue_id pg_catalog.int4 NOT NULL,
    id pg_catalog.int8 GENERATED ALWAYS AS IDENTITY,
    role pg_catalog.regrole NOT NULL,
    priority pg_catalog.int4 NOT NULL DEFAULT 0,
    attempts pg_catalog.int4 NOT NULL DEFAULT 0,
    done pg_catalog.int8 NOT NULL DEFAULT 0,
    token pg_catalog.int8,
    ready_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    expires_at pg_catalog.timestamptz,
    put_off pg_catalog.timestamptz,
    created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    changed_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished_at pg_catalog.timestamptz,
    ttl pg_catalog.interval,
    key pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    state pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    working pg_catalog.text,
    from_state pg_catalog.text,
    owner pg_catalog.text,
    error pg_catalog.text,
    payload pg_catalog.jsonb,
    CONSTRAINT task_key UNIQUE (queue_id, key, done))
    WITH (fillfactor = 85, vacuum_truncate = false,
          autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
          autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 1000,
          autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE _dlock.task IS 'tasks with their states and captures; read them through dlock_tasks';
SELECT pg_catalog.pg_extension_config_dump('_dlock.task', '');
SELECT pg_catalog.pg_extension_config_dump('_dlock.task_id_seq', '');

-- task_ready has the order in which tasks are captured.  Without statistics the planner takes a partial
-- index for a tiny one, and would read all of it to find a task by its key.  So statements that do so say
-- "done = 0", which does not imply the condition of this index.
--
-- Captures visit the entries of tasks that are captured, so dead entries are removed when others need
-- their place, and need not wait for VACUUM.  A task with a delay is not there, but in task_aside, until
-- a capture finds that its delay is over.  No index has a column that a capture changes: the new row
-- needs no new entries (it is "HOT") unless the task will be in another state at its deadline.
CREATE INDEX task_ready ON _dlock.task (state, queue_id, priority, id) WHERE finished_at IS NULL AND put_off IS NULL;
CREATE INDEX task_aside ON _dlock.task (queue_id, put_off, finished_at) WHERE finished_at IS NOT NULL OR put_off IS NOT NULL;

INSERT INTO _dlock.task (queue_id, role, key, state, error)
    SELECT 0, 0, i, '', pg_catalog.repeat('x', 1000) FROM pg_catalog.generate_series(1, 500) i;
DELETE FROM _dlock.task;

ALTER TABLE _dlock.task ENABLE ROW LEVEL SECURITY;
CREATE POLICY readers ON _dlock.task FOR SELECT USING (pg_catalog.pg_has_role(role, 'USAGE'));
CREATE POLICY changers ON _dlock.task FOR UPDATE USING (pg_catalog.pg_has_role(role, 'USAGE'));
CREATE POLICY removers ON _dlock.task FOR DELETE USING (pg_catalog.pg_has_role(role, 'USAGE'));
CREATE POLICY creators ON _dlock.task FOR INSERT WITH CHECK (EXISTS (
    SELECT FROM _dlock.task_queue q
     WHERE q.queue_id OPERATOR(pg_catalog.=) _dlock.task.queue_id
       AND q.role::pg_catalog.oid OPERATOR(pg_catalog.=) _dlock.task.role::pg_catalog.oid
       AND pg_catalog.pg_has_role(q.role, 'USAGE')));
REVOKE ALL ON _dlock.task FROM PUBLIC;
GRANT SELECT, INSERT, DELETE ON _dlock.task TO PUBLIC;
GRANT UPDATE (priority, attempts, done, token, ready_at, expires_at, put_off, changed_at, finished_at, ttl,
    state, working, from_state, owner, error, payload) ON _dlock.task TO PUBLIC;

-- The tasks of a queue belong to the role of the queue.
CREATE FUNCTION _dlock.task_role_changed() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE _dlock.task t SET role = new.role WHERE t.queue_id = new.queue_id;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION _dlock.task_role_changed() IS 'give the tasks of a queue to its new role';
CREATE TRIGGER role_changed AFTER UPDATE OF role ON _dlock.task_queue
    FOR EACH ROW EXECUTE FUNCTION _dlock.task_role_changed();

CREATE VIEW @extschema@.dlock_tasks WITH (security_invoker) AS
    SELECT q.queue, t.key, CASE WHEN c.captured THEN t.working ELSE t.state END AS state, t.priority, t.attempts, t.token,
           CASE WHEN c.captured OR t.finished_at IS NOT NULL THEN t.owner END AS owner,
           CASE WHEN c.captured THEN t.expires_at END AS expires_at,
           CASE WHEN NOT c.captured AND t.finished_at IS NULL AND t.ready_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN t.ready_at END AS ready_at,
           t.created_at, t.changed_at, t.finished_at,
           CASE WHEN NOT c.captured AND t.expires_at IS NOT NULL THEN 'timed out' ELSE t.error END AS error, t.payload
      FROM _dlock.task_queue q
      JOIN _dlock.task t ON t.queue_id OPERATOR(pg_catalog.=) q.queue_id
           CROSS JOIN LATERAL (SELECT coalesce(t.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), false) AS captured OFFSET 0) c;
GRANT SELECT ON @extschema@.dlock_tasks TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_tasks IS 'the tasks of the queues that the current role may use';

CREATE VIEW @extschema@.dlock_task_state WITH (security_barrier) AS
    SELECT q.queue, q.role,
           pg_catalog.count(*) FILTER (WHERE c.ready AND NOT c.parked) AS ready,
           pg_catalog.count(*) FILTER (WHERE NOT c.captured AND NOT c.ready AND NOT c.parked) AS delayed,
           pg_catalog.count(*) FILTER (WHERE c.captured) AS captured,
           pg_catalog.count(*) FILTER (WHERE NOT c.captured AND c.parked) AS parked,
           pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min(t.ready_at) FILTER (WHERE c.ready AND NOT c.parked AND pg_catalog.isfinite(t.ready_at)) AS oldest_ready
      FROM _dlock.task_queue q
      LEFT JOIN _dlock.task t ON t.queue_id OPERATOR(pg_catalog.=) q.queue_id AND t.done OPERATOR(pg_catalog.=) 0
      LEFT JOIN LATERAL (SELECT coalesce(t.expires_at OPERATOR(pg_catalog.>) now, false) AS captured,
                                t.ready_at OPERATOR(pg_catalog.<=) now AS ready,
                                t.state OPERATOR(pg_catalog.=) 'parked' AS parked
                           FROM pg_catalog.clock_timestamp() now) c ON t.queue_id IS NOT NULL
     WHERE pg_catalog.pg_has_role(q.role, 'USAGE') OR pg_catalog.pg_has_role('pg_monitor', 'USAGE')
     GROUP BY q.queue, q.role;
GRANT SELECT ON @extschema@.dlock_task_state TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_task_state IS 'how many tasks the queues have that the current role may use; a member of pg_monitor sees all queues';

-- What the functions below share.  Most of it is called only when an argument is not the usual one, or to say what is wrong.

CREATE FUNCTION _dlock.find_queue(queue pg_catalog.text) RETURNS _dlock.task_queue
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue;
BEGIN
    SELECT * INTO q FROM _dlock.task_queue x WHERE x.queue = find_queue.queue;
    IF q.queue_id IS NULL AND _dlock.check_text(queue, 'queue name', 255) THEN
        RAISE undefined_object USING MESSAGE = format('task queue "%s" does not exist', queue),
            HINT = 'Create it with dlock_queue_create().';
    ELSIF NOT pg_has_role(q.role, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for task queue "%s"', queue),
            DETAIL = format('It belongs to role "%s".', q.role), HINT = 'Only that role, its members and superusers can use it.';
    END IF;
    RETURN q;
END $$;
COMMENT ON FUNCTION _dlock.find_queue(pg_catalog.text) IS 'a queue that the caller may use';

-- Transitions are kept as texts like 'from -> to', with one blank on each side.
CREATE FUNCTION _dlock.task_state(q _dlock.task_queue, state pg_catalog.text, from_state pg_catalog.text DEFAULT NULL,
    may_finish pg_catalog.bool DEFAULT false, detail pg_catalog.text DEFAULT 'The queue has declared transitions.') RETURNS pg_catalog.text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF _dlock.check_text(state, 'task state', 63) AND (state ~ '^ | $|->') THEN
        RAISE invalid_parameter_value USING MESSAGE = format('invalid state "%s"', state),
            DETAIL = 'It begins or ends with a blank, or has "->" in it.', HINT = 'Use a word.';
    ELSIF state = 'done' AND NOT may_finish THEN
        RAISE invalid_parameter_value USING MESSAGE = 'state "done" is the one of finished tasks',
            HINT = 'Use another state, or finish the task with dlock_task_finish().';
    ELSIF q.transitions IS NULL OR from_state = state THEN
        RETURN state;
    ELSIF state <> 'parked' AND state <> ALL (string_to_array(array_to_string(q.transitions, ' -> '), ' -> ')) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('state "%s" is not declared for task queue "%s"', state, q.queue),
            DETAIL = 'The queue has declared transitions, and none of them leads there or starts there.',
            HINT = 'Use one of the states that are declared.';
    ELSIF from_state || ' -> ' || state <> ALL (q.transitions) THEN
        RAISE check_violation USING DETAIL = detail,
            MESSAGE = format('task queue "%s" does not allow the transition from state "%s" to "%s"', q.queue, from_state, state),
            HINT = format('From "%s" it allows%s.', from_state,
                coalesce((SELECT ': ' || string_agg(format('"%s"', substr(w, length(from_state) + 5)), ', ')
                            FROM unnest(q.transitions) w WHERE starts_with(w, from_state || ' -> ')), ' none'));
    END IF;
    RETURN state;
END $$;
COMMENT ON FUNCTION _dlock.task_state(_dlock.task_queue, pg_catalog.text, pg_catalog.text, pg_catalog.bool, pg_catalog.text)
    IS 'the state, if the queue has it, and tasks may go there from another one';

CREATE FUNCTION _dlock.task_check_put(queue pg_catalog.text, key pg_catalog.text, priority pg_catalog.int4, state pg_catalog.text, delay pg_catalog.interval)
    RETURNS pg_catalog.void LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
BEGIN
    PERFORM _dlock.check_text(key, 'task key', 255), _dlock.task_state(q, coalesce(state, 'ready')),
        _dlock.check_span(coalesce(delay, '0'), 'delay', '36500 days');
    IF priority IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'parameter "priority" must not be null';
    END IF;
END $$;
COMMENT ON FUNCTION _dlock.task_check_put(pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval)
    IS 'refuse a task that cannot be put';

CREATE FUNCTION _dlock.task_check_capture(queue pg_catalog.text, count pg_catalog.int4, from_states pg_catalog.text[], to_state pg_catalog.text,
    owner pg_catalog.text, on_timeout pg_catalog.text, wait pg_catalog.interval) RETURNS pg_catalog.void
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
BEGIN
    IF (count BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING MESSAGE = 'number of tasks must be from 1 to 1000',
            DETAIL = format('The number given is %s.', coalesce(count::text, 'null')), HINT = 'Capture more with further calls.';
    ELSIF from_states IS NOT NULL AND array_ndims(from_states) IS DISTINCT FROM 1 OR cardinality(from_states) > 16 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of states',
            DETAIL = 'It is empty, has more than one dimension, or more than 16 states.', HINT = 'Pass the states to capture from.';
    END IF;
    PERFORM _dlock.check_text(coalesce(owner, '-'), 'owner', 255), _dlock.check_span(coalesce(wait, '0'), 'wait', '36500 days'),
        _dlock.task_state(q, s), _dlock.task_state(q, to_state, s, false, 'The capture would move tasks so.'),
        _dlock.task_state(q, coalesce(on_timeout, s), to_state, false, 'A capture that times out would move tasks so, unless on_timeout names another state.')
        FROM unnest(coalesce(from_states, '{ready}')) s;
END $$;
COMMENT ON FUNCTION _dlock.task_check_capture(pg_catalog.text, pg_catalog.int4, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.interval)
    IS 'refuse a capture if its arguments are bad, or the queue does not allow what can come of it';

-- Lock an unfinished task.  With a token it has to be captured with that.
CREATE FUNCTION _dlock.task_lock(q _dlock.task_queue, key pg_catalog.text, token pg_catalog.int8, may_be_lost pg_catalog.bool DEFAULT false) RETURNS _dlock.task
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    t _dlock.task;
BEGIN
    SELECT * INTO t FROM _dlock.task x WHERE x.queue_id = q.queue_id AND x.key = task_lock.key AND x.done = 0 FOR NO KEY UPDATE;
    IF t.expires_at > clock_timestamp() THEN
        IF t.token = token THEN
            RETURN t;
        ELSIF token IS NULL THEN
            RAISE object_in_use USING MESSAGE = format('task "%s" of queue "%s" is captured', key, q.queue),
                DETAIL = format('Owner "%s" holds it under a lease.', t.owner), HINT = 'Pass the token of the capture, or wait until it ends.';
        END IF;
    ELSIF t.key IS NOT NULL AND token IS NULL THEN
        RETURN t;
    ELSIF t.key IS NULL THEN
        -- The last one that was finished says what has become of a capture.
        SELECT * INTO t FROM _dlock.task x WHERE x.queue_id = q.queue_id AND x.key = task_lock.key ORDER BY x.done DESC LIMIT 1;
        IF t.key IS NULL OR token IS NULL THEN
            PERFORM _dlock.check_text(key, 'task key', 255);
            RAISE undefined_object USING MESSAGE = format('task "%s" does not exist in queue "%s"', key, q.queue),
                DETAIL = CASE WHEN t.key IS NOT NULL THEN 'One of this key is finished.' ELSE '' END, HINT = 'Put it there with dlock_task_put().';
        END IF;
    END IF;
    IF may_be_lost THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LK002',
        MESSAGE = format('capture of task "%s" of queue "%s" with token %s is not held', key, q.queue, token),
        DETAIL = CASE
            WHEN t.token > token THEN format('The task has been captured again since, with token %s.', t.token)
            WHEN t.token = token AND t.expires_at IS NOT NULL THEN 'It has timed out.'
            WHEN t.token = token THEN format('It has ended; the task is in state "%s".', t.state)
            ELSE 'The task was not captured with this token, or that was rolled back.' END,
        HINT = 'Stop the work on this task, and undo what was not committed.';
END $$;
COMMENT ON FUNCTION _dlock.task_lock(_dlock.task_queue, pg_catalog.text, pg_catalog.int8, pg_catalog.bool) IS 'lock a task, or say why its capture is not held';

CREATE FUNCTION _dlock.task_move(t _dlock.task, state pg_catalog.text, attempts pg_catalog.int4, error pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT '0', finished_by pg_catalog.int8 DEFAULT 0) RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    now timestamptz := clock_timestamp();
BEGIN
    UPDATE _dlock.task x
       SET state = task_move.state, attempts = task_move.attempts, error = left(task_move.error, 1000), working = NULL, expires_at = NULL,
           owner = CASE WHEN finished_by > 0 THEN x.owner END, token = greatest(x.token, finished_by), done = finished_by,
           finished_at = CASE WHEN finished_by > 0 THEN now END, changed_at = now, ready_at = now + delay, put_off = now + nullif(delay, '0')
     WHERE x.queue_id = t.queue_id AND x.key = t.key AND x.done = 0;
    IF finished_by = 0 AND delay = '0' THEN
        PERFORM _dlock.signal(t.queue_id);
    END IF;
    RETURN state;
END $$;
COMMENT ON FUNCTION _dlock.task_move(_dlock.task, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.int8)
    IS 'end the capture of a locked task, set its state, or finish it with a token; returns the state';

CREATE FUNCTION @extschema@.dlock_queue_create(
    queue pg_catalog.text, transitions pg_catalog.text[] DEFAULT NULL, max_attempts pg_catalog.int4 DEFAULT 20,
    retry_delay pg_catalog.interval DEFAULT '1 s') RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sides text[];
BEGIN
    IF cardinality(transitions) = 0 OR array_ndims(transitions) > 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of transitions',
            DETAIL = 'It is empty, or has more than one dimension.', HINT = 'Pass texts like "from -> to", or NULL to allow all.';
    ELSIF max_attempts < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'parameter "max_attempts" must be greater than zero',
            DETAIL = format('The value is %s.', max_attempts), HINT = 'Pass NULL for no limit.';
    END IF;
    FOR i IN coalesce(array_lower(transitions, 1), 1) .. coalesce(array_upper(transitions, 1), 0) LOOP
        sides := regexp_split_to_array(trim(transitions[i]), ' *-> *');
        IF (cardinality(sides) = 2 AND octet_length(sides[1]) BETWEEN 1 AND 63 AND octet_length(sides[2]) BETWEEN 1 AND 63) IS NOT TRUE THEN
            RAISE invalid_parameter_value USING MESSAGE = format('invalid transition "%s"', transitions[i]),
                DETAIL = 'It has not two states, of 1 to 63 bytes, with "->" between them.', HINT = 'Write a transition as "from -> to".';
        END IF;
        transitions[i] := sides[1] || ' -> ' || sides[2];
    END LOOP;
    PERFORM _dlock.check_text(queue, 'queue name', 255), _dlock.check_span(retry_delay, 'retry_delay', '1 h');
    INSERT INTO _dlock.task_queue (queue, role, max_attempts, retry_delay, transitions)
        VALUES (queue, quote_ident(current_user)::regrole, max_attempts, retry_delay, transitions)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE duplicate_object USING MESSAGE = format('task queue "%s" already exists', queue),
            HINT = 'Use another name, or drop it with dlock_queue_drop().';
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_queue_create(pg_catalog.text, pg_catalog.text[], pg_catalog.int4, pg_catalog.interval)
    IS 'create a task queue that belongs to the current role; transitions are texts like ''from -> to''';

-- A transaction that puts a task may commit after this, so what an earlier one left goes, too.
CREATE FUNCTION @extschema@.dlock_queue_drop(queue pg_catalog.text) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue;
BEGIN
    IF _dlock.check_text(queue, 'queue name', 255) AND NOT EXISTS (SELECT FROM _dlock.task_queue x WHERE x.queue = dlock_queue_drop.queue) THEN
        RETURN false;
    END IF;
    q := _dlock.find_queue(queue);
    DELETE FROM _dlock.task_queue x WHERE x.queue_id = q.queue_id;
    DELETE FROM _dlock.task t
     WHERE t.role = q.role AND NOT EXISTS (SELECT FROM _dlock.task_queue x WHERE x.queue_id = t.queue_id);
    RETURN true;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_queue_drop(pg_catalog.text) IS 'drop a task queue with all its tasks; false if there is none of this name';

-- put, capture and finish name the schema of all that they use instead of setting search_path, which
-- would cost each of them as much as a statement.
CREATE FUNCTION @extschema@.dlock_task_put(
    queue pg_catalog.text, key pg_catalog.text, payload pg_catalog.jsonb DEFAULT NULL, priority pg_catalog.int4 DEFAULT 0,
    state pg_catalog.text DEFAULT NULL, delay pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    now pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    put_off pg_catalog.timestamptz;
    is_checked pg_catalog.bool := false;
    is_stored pg_catalog.bool;
BEGIN
    LOOP
        INSERT INTO _dlock.task AS t (queue_id, role, key, payload, priority, state, put_off, ready_at, created_at, changed_at)
            SELECT x.queue_id, x.role, key, payload, priority, coalesce(state, 'ready'), put_off, coalesce(put_off, now), now, now
              FROM _dlock.task_queue x
             WHERE x.queue OPERATOR(pg_catalog.=) queue AND pg_catalog.pg_has_role(x.role, 'USAGE')
               AND (is_checked OR state IS NULL AND delay IS NULL AND priority IS NOT NULL
                    AND key OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(key) OPERATOR(pg_catalog.<=) 255)
            ON CONFLICT DO NOTHING
            RETURNING t.put_off IS NOT NULL OR _dlock.signal(t.queue_id) INTO is_stored;
        IF is_stored THEN
            RETURN true;
        ELSIF is_checked THEN
            RETURN false;
        END IF;
        -- Then once more: the queue may be newer than the first snapshot.
        PERFORM _dlock.task_check_put(queue, key, priority, state, delay);
        is_checked := true;
        IF delay OPERATOR(pg_catalog.>) '0' THEN
            put_off := now OPERATOR(pg_catalog.+) delay;
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_put(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.int4, pg_catalog.text, pg_catalog.interval)
    IS 'put a task into a queue, to be captured after the delay; false, and nothing changes, if an unfinished one has its key';

CREATE FUNCTION @extschema@.dlock_task_capture(
    queue pg_catalog.text, count pg_catalog.int4 DEFAULT 1, from_states pg_catalog.text[] DEFAULT NULL, to_state pg_catalog.text DEFAULT 'working',
    owner pg_catalog.text DEFAULT NULL, ttl pg_catalog.interval DEFAULT NULL, on_timeout pg_catalog.text DEFAULT NULL,
    wait pg_catalog.interval DEFAULT '0', OUT key pg_catalog.text, OUT token pg_catalog.int8, OUT payload pg_catalog.jsonb,
    OUT priority pg_catalog.int4, OUT attempts pg_catalog.int4, OUT from_state pg_catalog.text, OUT expires_at pg_catalog.timestamptz) RETURNS SETOF pg_catalog.record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10 AS $$
#variable_conflict use_variable
DECLARE
    id pg_catalog.int4;
    max_attempts pg_catalog.int4;
    retry_delay pg_catalog.interval;
    usual pg_catalog.bool;
    due pg_catalog.bool;
    now pg_catalog.timestamptz;
    until pg_catalog.timestamptz;
    seen pg_catalog.int8;
    places pg_catalog.tid[];
    wanted pg_catalog.int4 := count;
BEGIN
    ttl := _dlock.ttl(ttl);
    LOOP
        FOREACH from_state IN ARRAY CASE WHEN pg_catalog.cardinality(from_states) OPERATOR(pg_catalog.>) 0 THEN from_states ELSE ARRAY['ready'] END LOOP
            FOR round IN 0 .. greatest(5, wanted OPERATOR(pg_catalog./) 100) LOOP
                -- A state that the planner knows would cost a new plan for each call, once it has statistics.
                SELECT x.queue_id, x.max_attempts, x.retry_delay, pg_catalog.clock_timestamp(),
                       x.transitions IS NULL AND from_states IS NULL AND to_state OPERATOR(pg_catalog.=) 'working' AND on_timeout IS NULL AND owner IS NULL
                           AND wait OPERATOR(pg_catalog.=) '0' AND count OPERATOR(pg_catalog.<=) 1000 AND count OPERATOR(pg_catalog.>) 0,
                       (SELECT t.put_off FROM _dlock.task t WHERE t.queue_id OPERATOR(pg_catalog.=) x.queue_id AND t.put_off IS NOT NULL
                         ORDER BY t.put_off LIMIT 1) OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(),
                       ARRAY(SELECT t.ctid FROM _dlock.task t
                              WHERE t.state OPERATOR(pg_catalog.=) (SELECT from_state) AND t.queue_id OPERATOR(pg_catalog.=) x.queue_id
                                AND t.finished_at IS NULL AND t.put_off IS NULL AND t.ready_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
                              ORDER BY t.priority, t.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
                  INTO id, max_attempts, retry_delay, now, usual, due, places
                  FROM _dlock.task_queue x WHERE x.queue OPERATOR(pg_catalog.=) queue AND pg_catalog.pg_has_role(x.role, 'USAGE');
                IF usual IS NOT TRUE THEN
                    PERFORM _dlock.task_check_capture(queue, count, from_states, to_state, owner, on_timeout, wait);
                    until := coalesce(until, CASE WHEN wait IS NULL THEN 'infinity' ELSE now OPERATOR(pg_catalog.+) wait END);
                END IF;
                EXIT WHEN due IS NOT TRUE OR round OPERATOR(pg_catalog.=) greatest(5, wanted OPERATOR(pg_catalog./) 100);
                -- Tasks whose delay is over may come first.  If there are many, later calls find the others: a round visits what the
                -- rounds before it have changed, and a call that is canceled changes nothing.
                UPDATE _dlock.task t SET put_off = NULL WHERE t.ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
                    SELECT x.ctid FROM _dlock.task x WHERE x.queue_id OPERATOR(pg_catalog.=) id AND x.put_off OPERATOR(pg_catalog.<=) now
                     ORDER BY x.put_off LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED));
                EXIT WHEN NOT FOUND;
            END LOOP;
            IF pg_catalog.cardinality(places) OPERATOR(pg_catalog.>) 0 THEN
                -- The first one and those behind it.  A limit that the planner does not know costs a new plan for each call.
                IF wanted OPERATOR(pg_catalog.>) 1 THEN
                    places := ARRAY(SELECT t.ctid FROM _dlock.task t
                        WHERE t.state OPERATOR(pg_catalog.=) from_state AND t.queue_id OPERATOR(pg_catalog.=) id
                          AND t.finished_at IS NULL AND t.put_off IS NULL AND t.ready_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
                        ORDER BY t.priority, t.id LIMIT wanted FOR NO KEY UPDATE SKIP LOCKED);
                END IF;
                -- A statement of its own: a scan marks dead entries when it ends, and gives up on a page that has been changed
                -- meanwhile.  An array that the planner knows would cost a new plan for each call.
                RETURN QUERY WITH captured AS (
                    UPDATE _dlock.task t
                       SET working = to_state, from_state = from_state, owner = coalesce(owner, _dlock.session()), token = _dlock.token(t.token),
                           attempts = t.attempts OPERATOR(pg_catalog.+) 1, ttl = ttl, expires_at = now OPERATOR(pg_catalog.+) ttl, changed_at = now,
                           state = CASE WHEN t.attempts OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.>=) max_attempts THEN 'parked' ELSE coalesce(on_timeout, from_state) END,
                           ready_at = now OPERATOR(pg_catalog.+) ttl OPERATOR(pg_catalog.+)
                               least(retry_delay OPERATOR(pg_catalog.*) pg_catalog.power(2, least(t.attempts, 20)), '1 h'),
                           error = CASE WHEN t.expires_at IS NOT NULL THEN 'timed out' ELSE t.error END
                     WHERE t.ctid OPERATOR(pg_catalog.=) ANY ((SELECT places)::pg_catalog.tid[])
                    RETURNING t.key, t.token, t.payload, t.priority, t.attempts, t.from_state, t.expires_at, t.id)
                    SELECT c.key, c.token, c.payload, c.priority, c.attempts, c.from_state, c.expires_at FROM captured c ORDER BY c.priority, c.id;
                wanted := wanted OPERATOR(pg_catalog.-) pg_catalog.cardinality(places);
                IF wanted OPERATOR(pg_catalog.=) 0 THEN
                    RETURN;
                END IF;
            END IF;
        END LOOP;
        -- Another snapshot shows nothing new to a transaction that keeps its first one.
        EXIT WHEN wanted OPERATOR(pg_catalog.<) count OR until IS NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) until
            OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) ANY (ARRAY['repeatable read', 'serializable']);
        -- Sleeps unless there has been a signal since before the scan.
        IF seen IS NOT NULL THEN
            PERFORM _dlock.signal_wait(id, seen, least(until, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 s'));
        END IF;
        seen := _dlock.signals(id);
    END LOOP;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_capture(pg_catalog.text, pg_catalog.int4, pg_catalog.text[], pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval)
    IS 'capture up to so many tasks in one of from_states for a ttl, each with a fencing token, and move them to to_state; if there are none, wait for them';

CREATE FUNCTION @extschema@.dlock_task_renew(
    queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, ttl pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t _dlock.task := _dlock.task_lock(_dlock.find_queue(queue), key, _dlock.check_token(token), true);
    ends timestamptz := CASE WHEN ttl IS NULL THEN greatest(clock_timestamp() + t.ttl, t.expires_at) ELSE clock_timestamp() + _dlock.ttl(ttl) END;
BEGIN
    UPDATE _dlock.task x SET expires_at = ends, ready_at = ends + (t.ready_at - t.expires_at), ttl = coalesce(dlock_task_renew.ttl, t.ttl)
     WHERE x.queue_id = t.queue_id AND x.key = t.key AND x.done = 0;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_renew(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.interval)
    IS 'let the capture of a task end so much later; false if it is no longer held';

CREATE FUNCTION _dlock.task_finish(queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, state pg_catalog.text) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
    t _dlock.task;
BEGIN
    IF EXISTS (SELECT FROM _dlock.task x WHERE x.queue_id = q.queue_id AND x.key = key AND x.done = _dlock.check_token(token) AND x.owner IS NOT NULL AND x.state = state) THEN
        RETURN false;
    END IF;
    t := _dlock.task_lock(q, key, token);
    IF state = 'ready' OR state = 'parked' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('state "%s" cannot be that of a finished task', state),
            HINT = 'Use another state, or hand the task on with dlock_task_release().';
    END IF;
    RETURN _dlock.task_move(t, _dlock.task_state(q, state, t.working, true), t.attempts, finished_by => token) IS NOT NULL;
END $$;
COMMENT ON FUNCTION _dlock.task_finish(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text)
    IS 'finish a captured task in any queue and state, or say why not';

CREATE FUNCTION @extschema@.dlock_task_finish(
    queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, state pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
#variable_conflict use_variable
DECLARE
    now pg_catalog.timestamptz := pg_catalog.clock_timestamp();
BEGIN
    -- Not by a join: a plan that begins with the task would look for its key without its queue, all over the index.
    UPDATE _dlock.task x
       SET state = 'done', done = token, error = NULL, working = NULL, expires_at = NULL, changed_at = now, finished_at = now
     WHERE x.queue_id OPERATOR(pg_catalog.=) (SELECT q.queue_id FROM _dlock.task_queue q
                                               WHERE q.queue OPERATOR(pg_catalog.=) queue AND q.transitions IS NULL AND state IS NULL)
       AND x.key OPERATOR(pg_catalog.=) key AND x.done OPERATOR(pg_catalog.=) 0
       AND x.token OPERATOR(pg_catalog.=) token AND x.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();
    IF FOUND THEN
        RETURN true;
    END IF;
    RETURN _dlock.task_finish(queue, key, token, coalesce(state, 'done'));
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_finish(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text) IS 'finish a captured task; false if this token has finished it before';

CREATE FUNCTION @extschema@.dlock_task_fail(
    queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, state pg_catalog.text DEFAULT NULL, error pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
    t _dlock.task := _dlock.task_lock(q, key, _dlock.check_token(token));
BEGIN
    IF t.attempts >= q.max_attempts THEN
        RETURN _dlock.task_move(t, 'parked', t.attempts, error);
    END IF;
    RETURN _dlock.task_move(t, _dlock.task_state(q, coalesce(state, t.from_state), t.working), t.attempts, error,
        _dlock.check_span(coalesce(delay, t.ready_at - t.expires_at), 'delay', '36500 days'));
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_fail(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task up; returns the state that it is in then, "parked" if its attempts are used up';

-- In another state the task is tried anew.
CREATE FUNCTION @extschema@.dlock_task_release(
    queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, state pg_catalog.text DEFAULT NULL, delay pg_catalog.interval DEFAULT NULL) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
    t _dlock.task := _dlock.task_lock(q, key, _dlock.check_token(token), state IS NULL);
BEGIN
    IF t.key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM _dlock.task_move(t, _dlock.task_state(q, coalesce(state, t.from_state), t.working),
        CASE WHEN coalesce(state, t.from_state) = t.from_state THEN t.attempts - 1 ELSE 0 END,
        delay => _dlock.check_span(coalesce(delay, '0'), 'delay', '36500 days'));
    RETURN true;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text, pg_catalog.interval)
    IS 'give a captured task back without counting an attempt, false if it is lost; or hand it on to another state';

-- A parked task is tried anew.
CREATE FUNCTION @extschema@.dlock_task_set(
    queue pg_catalog.text, key pg_catalog.text, token pg_catalog.int8, state pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
    t _dlock.task := _dlock.task_lock(q, key, CASE WHEN token IS NOT NULL THEN _dlock.check_token(token) END);
    before text := CASE WHEN token IS NULL THEN t.state ELSE t.working END;
BEGIN
    IF _dlock.task_state(q, state, before, true) = 'done' THEN
        PERFORM _dlock.task_move(t, state, t.attempts, finished_by => coalesce(token, _dlock.token(t.token)));
    ELSIF token IS NULL THEN
        PERFORM _dlock.task_move(t, state, CASE WHEN before = 'parked' AND state <> before THEN 0 ELSE t.attempts END);
    ELSE
        IF t.state <> 'parked' THEN
            PERFORM _dlock.task_state(q, t.state, state, false, 'There the task would go when its capture times out.');
        END IF;
        UPDATE _dlock.task x SET working = dlock_task_set.state, changed_at = clock_timestamp()
         WHERE x.queue_id = t.queue_id AND x.key = t.key AND x.done = 0;
    END IF;
    RETURN before;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_set(pg_catalog.text, pg_catalog.text, pg_catalog.int8, pg_catalog.text)
    IS 'set the state of a task, with the token of its capture, or NULL if it is not captured; returns the one before';

CREATE FUNCTION @extschema@.dlock_task_purge(
    queue pg_catalog.text, older_than pg_catalog.interval, count pg_catalog.int4 DEFAULT 10000) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q _dlock.task_queue := _dlock.find_queue(queue);
    before timestamptz := clock_timestamp() - _dlock.check_span(older_than, 'older_than', '36500 days');
    removed int8;
BEGIN
    IF (count > 0) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING MESSAGE = 'number of tasks must be greater than zero', HINT = 'Pass how many to remove at most.';
    END IF;
    DELETE FROM _dlock.task t WHERE t.ctid = ANY (ARRAY(
        SELECT x.ctid FROM _dlock.task x WHERE x.queue_id = q.queue_id AND x.put_off IS NULL AND x.finished_at <= before
         ORDER BY x.put_off, x.finished_at LIMIT dlock_task_purge.count FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_task_purge(pg_catalog.text, pg_catalog.interval, pg_catalog.int4) IS 'remove up to so many tasks that were finished so long ago; returns how many';

----------------------------------------------------------------------------
-- Time slots and elections
----------------------------------------------------------------------------

-- The functions on leases by names that stay when the extension moves to another schema.
CREATE FUNCTION _dlock.acquire(name pg_catalog.text, owner pg_catalog.text, ttl pg_catalog.interval, lock_delay pg_catalog.interval, payload pg_catalog.jsonb)
    RETURNS pg_catalog.int8 LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_acquire(name, owner, ttl, mode => 'shared', lock_delay => lock_delay, payload => payload);
END;
COMMENT ON FUNCTION _dlock.acquire(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb) IS 'dlock_acquire, shared';
CREATE FUNCTION _dlock.acquire_all(names pg_catalog.text[], owner pg_catalog.text, ttl pg_catalog.interval)
    RETURNS pg_catalog.int8[] LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_acquire_all(names, owner, ttl);
END;
COMMENT ON FUNCTION _dlock.acquire_all(pg_catalog.text[], pg_catalog.text, pg_catalog.interval) IS 'dlock_acquire_all';
CREATE FUNCTION _dlock.renew_all(owner pg_catalog.text, ttl pg_catalog.interval) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_renew_all(owner, ttl);
END;
COMMENT ON FUNCTION _dlock.renew_all(pg_catalog.text, pg_catalog.interval) IS 'dlock_renew_all';
CREATE FUNCTION _dlock.release_token(name pg_catalog.text, token pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_release_token(name, token);
END;
COMMENT ON FUNCTION _dlock.release_token(pg_catalog.text, pg_catalog.int8) IS 'dlock_release_token';
CREATE FUNCTION _dlock.release_all(owner pg_catalog.text) RETURNS pg_catalog.int4 LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_release_all(owner);
END;
COMMENT ON FUNCTION _dlock.release_all(pg_catalog.text) IS 'dlock_release_all';

-- A win is a lease on a lock of its own, up to the end of the slot, and then the lock is closed as
-- long as a lease may last.  The leases are shared, so that neither blocks a later win.  When they were
-- granted says which slots are won: by the wall clock alone, whose slots they are.
--
-- Whoever finds no win in its slot records one, and looks again: of those who do so together the one
-- with the lowest token wins.  Tokens of a lock ascend in the order of its grants, so each sees
-- all that are lower.  Others take theirs back.
CREATE FUNCTION @extschema@.dlock_once(name pg_catalog.text, every pg_catalog.interval) RETURNS pg_catalog.int8
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lock text := 'once:' || name;
    memory interval := _dlock.max_ttl();
    slot timestamptz;
    slot_end timestamptz;
    win record;
    mine int8;
    has_won bool := false;
BEGIN
    PERFORM _dlock.check_text(name, 'name', 240);
    IF every IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'length of the time slots must not be null';
    ELSIF every <= interval '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'length of the time slots must be greater than zero',
            HINT = 'Pass the length of a slot, such as ''1 day''.';
    ELSIF every > memory THEN
        RAISE invalid_parameter_value USING MESSAGE = 'length of the time slots is longer than "dlock.max_ttl"',
            DETAIL = format('The limit is %s seconds.', extract(epoch FROM memory)::int8), HINT = 'Pass a shorter length, or raise "dlock.max_ttl".';
    END IF;

    LOOP
        slot := date_bin(make_interval(secs => extract(epoch FROM every)::float8), _dlock.clock(), 'epoch');
        slot_end := slot + make_interval(secs => extract(epoch FROM every)::float8);
        IF EXISTS (SELECT FROM _dlock.names_held(ARRAY[lock]) l WHERE l.granted_at >= slot) THEN
            RETURN NULL;
        END IF;
        -- A call that fails takes its win back, unless it has won already: then it has happened.
        BEGIN
            mine := _dlock.acquire(lock, format('%s to %s', slot, slot_end), greatest(slot_end - _dlock.clock(), '1 us'),
                least(memory, '49 days'), NULL);
            IF mine IS NULL THEN
                RETURN NULL;        -- won at this moment
            END IF;
            SELECT bool_or(l.token < mine AND l.granted_at >= slot) AS is_lost,
                   bool_or(l.token = mine AND (l.granted_at < slot OR l.granted_at >= slot_end)) AS is_over
              INTO win FROM _dlock.names_held(ARRAY[lock]) l;
            IF win.is_lost OR win.is_over THEN
                PERFORM _dlock.release_token(lock, mine);
            END IF;
            IF win.is_lost THEN
                RETURN NULL;
            ELSIF NOT win.is_over THEN
                -- Earlier wins are no longer needed, as this one says what they did.
                has_won := true;
                PERFORM _dlock.release_token(lock, l.token) FROM _dlock.names_held(ARRAY[lock]) l
                  WHERE l.token < mine AND pg_has_role(l.role, 'USAGE') AND (l.state <> 'held' OR l.expires_at <= slot_end);
                RETURN mine;
            END IF;
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            IF has_won AND NOT _dlock.is_transactional() THEN
                RETURN mine;
            ELSIF mine IS NOT NULL THEN
                PERFORM _dlock.release_token(lock, mine);
            END IF;
            RAISE;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_once(pg_catalog.text, pg_catalog.interval) IS 'a fencing token for the first caller in each time slot, NULL for all others';

CREATE FUNCTION @extschema@.dlock_campaign(
    election pg_catalog.text, candidate pg_catalog.text, ttl pg_catalog.interval DEFAULT NULL, wait pg_catalog.interval DEFAULT '0',
    payload pg_catalog.jsonb DEFAULT NULL) RETURNS pg_catalog.int8
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_acquire(election, candidate, ttl, wait, reentry => 'return', payload => payload);
END;
COMMENT ON FUNCTION @extschema@.dlock_campaign(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.jsonb)
    IS 'become or remain the leader; returns the fencing token of the term, or NULL if another candidate leads';

CREATE FUNCTION @extschema@.dlock_resign(election pg_catalog.text, candidate pg_catalog.text) RETURNS pg_catalog.bool
    LANGUAGE sql VOLATILE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT @extschema@.dlock_release(election, candidate);
END;
COMMENT ON FUNCTION @extschema@.dlock_resign(pg_catalog.text, pg_catalog.text) IS 'end the term of a leader; false if it does not lead';

CREATE FUNCTION @extschema@.dlock_leader(
    election pg_catalog.text,
    OUT leader pg_catalog.text,
    OUT since pg_catalog.timestamptz,
    OUT token pg_catalog.int8,
    OUT payload pg_catalog.jsonb,
    OUT expires_at pg_catalog.timestamptz)
    RETURNS pg_catalog.record
    LANGUAGE sql VOLATILE PARALLEL RESTRICTED
BEGIN ATOMIC
    -- One row in any case: without a leader a row of NULLs, and not NULL.
    SELECT l.owner, l.granted_at, l.token, l.payload, l.expires_at
      FROM (SELECT 1 AS one) always
      LEFT JOIN @extschema@.dlock_lease(election) l ON l.state = 'held'
     ORDER BY l.token DESC
     LIMIT 1;
END;
COMMENT ON FUNCTION @extschema@.dlock_leader(pg_catalog.text)
    IS 'the leader, since when, with its token and payload; NULLs if there is none';

----------------------------------------------------------------------------
-- Groups
----------------------------------------------------------------------------

-- A group has no state besides its definition and the leases of its members.  A membership is a
-- shared lease on the lock of the group, a partition is a lock, and its lease belongs to the same owner.
-- Each renewal computes all shares again from the same facts, so nothing is handed over or elected.
--
-- What keeps two members from running a partition is its lease.  The shares only say who takes it.
CREATE TABLE _dlock.group_definition (
    name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    role pg_catalog.regrole NOT NULL,
    partitions pg_catalog.text[] NOT NULL);
COMMENT ON TABLE _dlock.group_definition IS 'groups, their owners and the names of their partitions';
SELECT pg_catalog.pg_extension_config_dump('_dlock.group_definition', '');
ALTER TABLE _dlock.group_definition ENABLE ROW LEVEL SECURITY;
CREATE POLICY readers ON _dlock.group_definition FOR SELECT USING (true);
CREATE POLICY users ON _dlock.group_definition USING (pg_catalog.pg_has_role(role, 'USAGE'));
REVOKE ALL ON _dlock.group_definition FROM PUBLIC;
GRANT SELECT, INSERT, DELETE, UPDATE (partitions) ON _dlock.group_definition TO PUBLIC;

CREATE VIEW @extschema@.dlock_groups WITH (security_invoker) AS SELECT name, role, partitions FROM _dlock.group_definition;
GRANT SELECT ON @extschema@.dlock_groups TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_groups IS 'groups, their owners and the names of their partitions';

CREATE FUNCTION _dlock.group_find(group_name pg_catalog.text) RETURNS _dlock.group_definition
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g _dlock.group_definition;
BEGIN
    SELECT * INTO g FROM _dlock.group_definition x WHERE x.name = group_name;
    IF g.name IS NULL THEN
        PERFORM _dlock.check_text(group_name, 'group name', 100);
        RAISE undefined_object USING MESSAGE = format('group "%s" does not exist', group_name), HINT = 'Create it with dlock_group_create().';
    ELSIF NOT pg_has_role(g.role, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for group "%s"', group_name),
            DETAIL = format('It belongs to role "%s".', g.role), HINT = 'Only that role, its members and superusers can use it.';
    END IF;
    RETURN g;
END $$;
COMMENT ON FUNCTION _dlock.group_find(pg_catalog.text) IS 'a group that the caller may use';

CREATE FUNCTION _dlock.group_partitions(count pg_catalog.int4, names pg_catalog.text[]) RETURNS pg_catalog.text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (count IS NULL) = (names IS NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'either count or names of the partitions must be given',
            HINT = 'Partitions that are counted are named 0, 1, 2 and so on.';
    ELSIF count NOT BETWEEN 1 AND 10000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'count of partitions must be from 1 to 10000',
            DETAIL = format('The number given is %s.', count), HINT = 'Use several partitions for each member, not one for each key.';
    ELSIF names IS NULL THEN
        RETURN ARRAY(SELECT i::text FROM generate_series(0, count - 1) i);
    ELSIF array_ndims(names) IS DISTINCT FROM 1 OR cardinality(names) > 10000
        OR cardinality(names) > (SELECT pg_catalog.count(DISTINCT n) FROM unnest(names) n WHERE _dlock.check_text(n, 'partition name', 100)) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid array of partition names',
            DETAIL = 'It is empty, has more than one dimension, more than 10000 names, or a name twice.', HINT = 'Pass different names.';
    END IF;
    RETURN names;
END $$;
COMMENT ON FUNCTION _dlock.group_partitions(pg_catalog.int4, pg_catalog.text[]) IS 'the names of partitions that are counted, or named';
-- Roles may change the rows of their groups by hand, and all roles read all groups.
ALTER TABLE _dlock.group_definition
    ADD CHECK (_dlock.check_text(name, 'group name', 100) AND _dlock.group_partitions(NULL, partitions) IS NOT NULL);

CREATE FUNCTION @extschema@.dlock_group_create(
    group_name pg_catalog.text, count pg_catalog.int4 DEFAULT NULL, names pg_catalog.text[] DEFAULT NULL) RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF _dlock.check_text(group_name, 'group name', 100) AND position('/' IN group_name) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('group name "%s" contains a slash', group_name), HINT = 'Use another character.';
    END IF;
    INSERT INTO _dlock.group_definition (name, role, partitions)
        VALUES (group_name, quote_ident(current_user)::regrole, _dlock.group_partitions(count, names)) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE duplicate_object USING MESSAGE = format('group "%s" already exists', group_name),
            HINT = 'To give it other partitions, use dlock_group_alter().';
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_create(pg_catalog.text, pg_catalog.int4, pg_catalog.text[])
    IS 'create a group of so many partitions, or of those named, that belongs to the current role';

CREATE FUNCTION @extschema@.dlock_group_alter(
    group_name pg_catalog.text, count pg_catalog.int4 DEFAULT NULL, names pg_catalog.text[] DEFAULT NULL) RETURNS pg_catalog.void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g _dlock.group_definition := _dlock.group_find(group_name);
BEGIN
    UPDATE _dlock.group_definition x SET partitions = _dlock.group_partitions(count, names) WHERE x.name = g.name;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_alter(pg_catalog.text, pg_catalog.int4, pg_catalog.text[]) IS 'give a group other partitions';

CREATE FUNCTION @extschema@.dlock_group_drop(group_name pg_catalog.text) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g _dlock.group_definition;
BEGIN
    IF _dlock.check_text(group_name, 'group name', 100) AND EXISTS (SELECT FROM _dlock.group_definition x WHERE x.name = group_name) THEN
        g := _dlock.group_find(group_name);
        DELETE FROM _dlock.group_definition x WHERE x.name = g.name;
    END IF;
    RETURN g.name IS NOT NULL;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_drop(pg_catalog.text) IS 'drop a group; false if there is none of this name';

-- Of a lease what counts here: the leases on all partitions are copied several times in a renewal.
CREATE TYPE _dlock.group_lease AS (
    name pg_catalog.text, owner pg_catalog.text, role pg_catalog.regrole, token pg_catalog.int8, is_held pg_catalog.bool,
    granted_at pg_catalog.timestamptz, expires_at pg_catalog.timestamptz);
COMMENT ON TYPE _dlock.group_lease IS 'the lease on a partition';

CREATE FUNCTION _dlock.group_held(g _dlock.group_definition) RETURNS _dlock.group_lease[]
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(SELECT ROW(h.name, h.owner, h.role, h.token, h.state = 'held', h.granted_at, h.expires_at)::_dlock.group_lease
                   FROM _dlock.names_held(ARRAY(SELECT 'group:' || g.name || '/' || p FROM unnest(g.partitions) p)) h);
END $$;
COMMENT ON FUNCTION _dlock.group_held(_dlock.group_definition) IS 'the leases on the partitions of a group';

-- A share is the number of partitions times a member's part of the weights, rounded down.  What is left goes
-- to some members, one each: first to those that own more anyway, so that it need not move; then by the
-- largest remainder (Hamilton).  Among members that own no more the one that asks comes first, so that it
-- takes a free partition at once.  Whoever may not use the group is no member, whatever leases it has.
CREATE FUNCTION _dlock.group_shares(g _dlock.group_definition, held _dlock.group_lease[], asks pg_catalog.int8,
    OUT member pg_catalog.text, OUT token pg_catalog.int8, OUT weight pg_catalog.int4, OUT owned pg_catalog.int4, OUT due pg_catalog.int4,
    OUT role pg_catalog.regrole, OUT joined_at pg_catalog.timestamptz, OUT expires_at pg_catalog.timestamptz, OUT ttl pg_catalog.interval,
    OUT payload pg_catalog.jsonb) RETURNS SETOF pg_catalog.record LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    partitions int4 := cardinality(g.partitions);
BEGIN
    RETURN QUERY
    WITH leases AS (
        SELECT l.*, CASE WHEN l.payload ->> 'weight' ~ '^[1-9][0-9]{0,3}$' THEN (l.payload ->> 'weight')::int4 END AS weight, l.payload -> 'payload' AS own_payload
          FROM _dlock.names_held(ARRAY['group:' || g.name]) l WHERE pg_has_role(l.role, g.role, 'USAGE')
    ), members AS (
        SELECT * FROM leases l WHERE l.weight IS NOT NULL
    ), owners AS (
        SELECT h.owner, h.role::oid AS role, count(*)::int4 AS owned FROM unnest(held) h GROUP BY h.owner, h.role::oid
    ), parts AS (
        SELECT l.*, coalesce(o.owned, 0) AS owned,
               partitions::int8 * l.weight AS part, sum(l.weight) OVER ()::int8 AS weights
          FROM members l LEFT JOIN owners o ON o.owner = l.owner AND o.role = l.role::oid
    ), shares AS (
        SELECT p.*, (part / weights)::int4 AS base, part % weights AS rest,
               partitions - sum(part / weights) OVER () AS spare FROM parts p
    )
    SELECT substr(s.owner, length(g.name) + 8), s.token, s.weight, s.owned,
           base + (rest > 0 AND row_number() OVER (PARTITION BY rest > 0
               ORDER BY s.owned <= base, rest DESC, s.owned > base OR s.token IS DISTINCT FROM asks, s.token) <= spare)::int4,
           s.role, s.granted_at, s.expires_at, s.ttl, s.own_payload
      FROM shares s;
END $$;
COMMENT ON FUNCTION _dlock.group_shares(_dlock.group_definition, _dlock.group_lease[], pg_catalog.int8)
    IS 'the members of a group, with the number of partitions that they own and should own';

CREATE VIEW @extschema@.dlock_group_members WITH (security_invoker) AS
    SELECT g.name AS group_name, m.member, m.token, m.weight, m.owned, m.due, m.role, m.joined_at, m.expires_at, m.ttl, m.payload
      FROM _dlock.group_definition g CROSS JOIN LATERAL _dlock.group_shares(g, _dlock.group_held(g), NULL) m
     WHERE NOT pg_catalog.pg_is_in_recovery();
GRANT SELECT ON @extschema@.dlock_group_members TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_members IS 'the members of all groups, with the number of partitions that they own and should own';

CREATE VIEW @extschema@.dlock_group_partitions WITH (security_invoker) AS
    SELECT g.name AS group_name, p.partition,
           CASE WHEN pg_catalog.starts_with(h.owner, p.prefix) THEN pg_catalog.substr(h.owner, pg_catalog.length(p.prefix) + 1) END AS member,
           h.token, h.granted_at AS since, h.expires_at
      FROM _dlock.group_definition g
           CROSS JOIN LATERAL _dlock.group_held(g) held
           CROSS JOIN LATERAL (SELECT p AS partition, 'group:' || g.name || '/' AS prefix FROM pg_catalog.unnest(g.partitions) p) p
           LEFT JOIN LATERAL pg_catalog.unnest(held) h ON h.name = p.prefix || p.partition
     WHERE NOT pg_catalog.pg_is_in_recovery();
GRANT SELECT ON @extschema@.dlock_group_partitions TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_partitions IS 'the partitions of all groups and their owners';

CREATE VIEW @extschema@.dlock_group_state WITH (security_invoker) AS
    SELECT g.name AS group_name, g.role, pg_catalog.cardinality(g.partitions) AS partitions,
           CASE WHEN NOT r.recovers THEN (SELECT pg_catalog.count(*) FROM _dlock.group_shares(g, '{}', NULL)) END AS members,
           CASE WHEN NOT r.recovers THEN pg_catalog.cardinality(g.partitions) - pg_catalog.cardinality(_dlock.group_held(g)) END AS unowned
      FROM _dlock.group_definition g, pg_catalog.pg_is_in_recovery() AS r (recovers);
GRANT SELECT ON @extschema@.dlock_group_state TO PUBLIC;
COMMENT ON VIEW @extschema@.dlock_group_state IS 'how many partitions and members each group has, and how many partitions have no owner';

-- The earlier run of a member ends by its membership first.  A renewal of that run checks the
-- membership last, so it has taken what it tells before this, and the rest of its leases ends here.
CREATE FUNCTION @extschema@.dlock_group_join( group_name pg_catalog.text, member pg_catalog.text, ttl pg_catalog.interval DEFAULT NULL, weight pg_catalog.int4 DEFAULT 1,
    payload pg_catalog.jsonb DEFAULT NULL) RETURNS pg_catalog.int8 LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g _dlock.group_definition := _dlock.group_find(group_name);
    lock text := 'group:' || group_name;
    me text := lock || '/' || member;
    kept jsonb := jsonb_build_object('weight', weight) || CASE WHEN payload IS NULL THEN '{}' ELSE jsonb_build_object('payload', payload) END;
    token int8;
BEGIN
    PERFORM _dlock.check_text(member, 'member name', 100), _dlock.ttl(ttl);
    IF position('#' IN member) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('member name "%s" contains "#"', member),
            DETAIL = 'What follows it in an owner is the task of a client.', HINT = 'Use another character.';
    END IF;
    IF (weight BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING MESSAGE = 'weight must be from 1 to 1000',
            DETAIL = format('The weight given is %s.', coalesce(weight::text, 'null')), HINT = 'A member gets partitions in proportion to its weight.';
    ELSIF pg_column_size(kept) > 1028 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'payload is too long',
            DETAIL = format('With the weight it has %s bytes; the limit is 1024.', pg_column_size(kept) - 4);
    END IF;

    PERFORM _dlock.release_token(lock, h.token) FROM _dlock.names_held(ARRAY[lock]) h WHERE h.owner = me AND pg_has_role(h.role, 'USAGE');
    PERFORM _dlock.release_all(me);
    token := _dlock.acquire(lock, me, ttl, '0', kept);
    IF token IS NULL THEN
        RAISE lock_not_available USING MESSAGE = format('could not join group "%s"', group_name), HINT = 'See dlock_lease() and dlock_waiters.',
            DETAIL = format('The member joins elsewhere at the moment, or lock "%s" is held in another mode.', lock);
    END IF;
    RETURN token;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_join(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.int4, pg_catalog.jsonb)
    IS 'join a group; returns the token of the membership';

CREATE FUNCTION _dlock.group_member(group_name pg_catalog.text, membership pg_catalog.int8, renews pg_catalog.bool DEFAULT false) RETURNS _dlock.held_lock
    LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me _dlock.held_lock;
BEGIN
    PERFORM _dlock.check_text(group_name, 'group name', 100), _dlock.check_token(membership);
    SELECT * INTO me FROM _dlock.names_held(ARRAY['group:' || group_name]) h WHERE h.token = membership AND h.state = 'held';
    IF me.owner IS NULL AND renews THEN
        RAISE EXCEPTION USING ERRCODE = 'LK002', MESSAGE = format('membership in group "%s" with token %s is not held', group_name, membership),
            DETAIL = 'It has expired, has been left or taken over, or was never granted.',
            HINT = 'Stop the work on all partitions, and join the group again.';
    ELSIF NOT (CASE WHEN renews THEN me.role = quote_ident(current_user)::regrole ELSE pg_has_role(me.role, 'USAGE') END) THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for membership %s in group "%s"', membership, group_name),
            DETAIL = format('It belongs to role "%s".', me.role),
            HINT = CASE WHEN renews THEN 'Only that role can renew it.' ELSE 'Only that role, its members and superusers can end it.' END;
    END IF;
    RETURN me;
END $$;
COMMENT ON FUNCTION _dlock.group_member(pg_catalog.text, pg_catalog.int8, pg_catalog.bool) IS 'a membership that the caller may renew or end; NULLs if it is over, which one that renews must not be';

-- A partition that has left the group can be given up, too.
CREATE FUNCTION _dlock.group_yield(me _dlock.held_lock, yielded pg_catalog.int8[]) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) FILTER (WHERE _dlock.release_token(h.name, h.token)) FROM _dlock.owner_held(me.owner) h
             WHERE h.token = ANY (yielded) AND h.role = me.role AND starts_with(h.name, me.name || '/'));
END $$;
COMMENT ON FUNCTION _dlock.group_yield(_dlock.held_lock, pg_catalog.int8[]) IS 'release partitions of a member by their tokens; returns how many';

CREATE FUNCTION @extschema@.dlock_group_yield(
    group_name pg_catalog.text, membership pg_catalog.int8, yielded pg_catalog.int8[]) RETURNS pg_catalog.int4
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF yielded IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'array of fencing tokens must not be null';
    END IF;
    RETURN _dlock.group_yield(_dlock.group_member(group_name, membership), yielded);
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_yield(pg_catalog.text, pg_catalog.int8, pg_catalog.int8[])
    IS 'give up partitions that the member has stopped working on, by their tokens; returns how many';

CREATE FUNCTION @extschema@.dlock_group_leave(group_name pg_catalog.text, membership pg_catalog.int8) RETURNS pg_catalog.bool
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me _dlock.held_lock := _dlock.group_member(group_name, membership);
BEGIN
    IF me.owner IS NULL OR NOT _dlock.release_token('group:' || group_name, membership) THEN
        RETURN false;
    END IF;
    PERFORM _dlock.release_all(me.owner);
    RETURN true;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_leave(pg_catalog.text, pg_catalog.int8) IS 'leave a group and give up all of its partitions; false if it is no member';

-- Renews first and reads then, so what it tells has been renewed; and looks at the membership again when all
-- is read, so what it tells is this run's.  Leases are taken with the group's row locked, so that each member sees what
-- others have taken; the error that ends the block frees it before the transaction ends.
CREATE FUNCTION @extschema@.dlock_group_renew( group_name pg_catalog.text, membership pg_catalog.int8, yielded pg_catalog.int8[] DEFAULT NULL,
    OUT partition pg_catalog.text, OUT token pg_catalog.int8, OUT action pg_catalog.text) RETURNS SETOF pg_catalog.record
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 100 SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    g _dlock.group_definition := _dlock.group_find(group_name);
    lock text := 'group:' || group_name;
    me _dlock.held_lock := _dlock.group_member(group_name, membership, true);
    held _dlock.group_lease[];
    share record;
    wanted text[];
    renewed int4;
BEGIN
    PERFORM _dlock.group_yield(me, yielded);
    renewed := _dlock.renew_all(me.owner, me.ttl);
    held := _dlock.group_held(g);
    SELECT s.* INTO share FROM _dlock.group_shares(g, held, membership) s WHERE s.token = membership;
    IF share.owned < share.due THEN
        BEGIN
            PERFORM FROM _dlock.group_definition x WHERE x.name = group_name FOR NO KEY UPDATE;
            held := _dlock.group_held(g);
            SELECT s.* INTO share FROM _dlock.group_shares(g, held, membership) s WHERE s.token = membership;
            wanted := ARRAY(SELECT lock || '/' || p FROM unnest(g.partitions) p WHERE lock || '/' || p NOT IN (SELECT h.name FROM unnest(held) h) LIMIT greatest(share.due - share.owned, 0));
            WHILE cardinality(wanted) > 0 LOOP
                PERFORM _dlock.acquire_all(wanted[:1000], me.owner, me.ttl);
                wanted := wanted[1001:];
            END LOOP;
            held := _dlock.group_held(g);
            IF NOT _dlock.is_transactional() THEN
                RAISE SQLSTATE 'LK000';
            END IF;
        EXCEPTION
            WHEN SQLSTATE 'LK000' THEN NULL;
            WHEN insufficient_resources THEN
                RAISE WARNING USING ERRCODE = SQLSTATE, MESSAGE = format('could not acquire partitions of group "%s": %s', group_name, SQLERRM),
                    DETAIL = 'The member keeps the partitions that it has.', HINT = 'The next renewal tries again.';
        END;
    END IF;

    PERFORM _dlock.group_member(group_name, membership, true);
    RETURN QUERY SELECT substr(h.name, length(lock) + 2), h.token,
                        CASE WHEN row_number() OVER (ORDER BY h.token DESC) <= count(*) OVER () - share.due THEN 'yield' ELSE 'run' END
                   FROM unnest(held) WITH ORDINALITY h
                  WHERE h.owner = me.owner AND h.role = me.role AND h.is_held ORDER BY h.ordinality;

    -- Of those that have left the group, too.
    IF renewed > share.owned + 1 THEN
        RETURN QUERY SELECT substr(h.name, length(lock) + 2), h.token, 'yield'
                       FROM _dlock.owner_held(me.owner) h
                      WHERE h.role = me.role AND h.state = 'held' AND starts_with(h.name, lock || '/')
                        AND substr(h.name, length(lock) + 2) <> ALL (g.partitions);
    END IF;
END $$;
COMMENT ON FUNCTION @extschema@.dlock_group_renew(pg_catalog.text, pg_catalog.int8, pg_catalog.int8[])
    IS 'remain in a group; returns the partitions to run, with their tokens, and those to stop and yield';
