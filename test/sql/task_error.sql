-- Proves: bad input to the functions on tasks is refused with a SQLSTATE, and a detail or a hint, and changes nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
SET statement_timeout = '60 s';

-- Run a query and say what it raised.
CREATE FUNCTION pg_temp.raised(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE query;
	RETURN 'NO ERROR';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN sqlstate || ': ' || regexp_replace(message, 'token \d{1,18}\y', 'token N') || CASE WHEN detail <> '' THEN E'\n  ' || detail ELSE '' END ||
		CASE WHEN hint <> '' THEN E'\n  ' || hint ELSE '' END;
END $$;

SELECT dlock_queue_create('task-error', '{ready -> working, working -> ready, working -> done}');
SELECT dlock_task_put('task-error', 'a'), dlock_task_put('task-error', 'b');
SELECT token FROM dlock_task_capture('task-error', owner => 'task-w', ttl => '1 h') \gset
CREATE TEMP VIEW tasks AS SELECT key, state, priority, attempts, token, owner, created_at, changed_at, finished_at, error, payload FROM dlock_tasks WHERE queue = 'task-error';
CREATE TEMP TABLE before AS TABLE tasks;
\pset format unaligned
\pset tuples_only on

-- queues
SELECT pg_temp.raised(format('SELECT dlock_queue_create(%s)', arguments)) FROM unnest(ARRAY[
	$$NULL$$, $$''$$, $$repeat('x', 256)$$, $$'task-error'$$, $$'e', '{}'$$, $$'e', '{NULL}'$$, $$'e', '{{a->b},{b->c}}'$$,
	$$'e', '{a}'$$, $$'e', '{-> b}'$$, $$'e', '{a ->}'$$, $$'e', '{a -> b -> c}'$$, $$'e', ARRAY['a -> ' || repeat('x', 64)]$$,
	$$'e', max_attempts => 0$$, $$'e', retry_delay => '-1 s'$$, $$'e', retry_delay => '2 h'$$, $$'e', retry_delay => NULL$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY n;
SELECT pg_temp.raised(format('SELECT dlock_queue_drop(%s)', arguments)) FROM unnest(ARRAY[$$NULL$$, $$''$$, $$'no-such'$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY n;

-- put
SELECT pg_temp.raised(format('SELECT dlock_task_put(%s)', arguments)) FROM unnest(ARRAY[
	$$NULL, 'k'$$, $$'no-such', 'k'$$, $$'task-error', NULL$$, $$'task-error', ''$$, $$'task-error', repeat('k', 256)$$,
	$$'task-error', 'k', priority => NULL$$, $$'task-error', 'k', state => ''$$, $$'task-error', 'k', state => ' a'$$, $$'task-error', 'k', state => 'a->b'$$,
	$$'task-error', 'k', state => repeat('x', 64)$$, $$'task-error', 'k', state => 'done'$$, $$'task-error', 'k', state => 'nowhere'$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY n;

-- set
SELECT pg_temp.raised(format('SELECT dlock_task_set(%s)', arguments)) FROM unnest(ARRAY[
	$$'no-such', 'a', NULL, 'ready'$$, $$'task-error', 'no-such', NULL, 'ready'$$, $$'task-error', 'a', NULL, NULL$$, $$'task-error', 'a', NULL, 'ready'$$,
	$$'task-error', 'b', NULL, NULL$$, $$'task-error', 'b', NULL, 'nowhere'$$, $$'task-error', 'b', NULL, 'done'$$, $$'task-error', 'b', 0, 'working'$$, $$'task-error', 'b', 9223372036854775807, 'working'$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY n;

-- capture
SELECT pg_temp.raised(format('SELECT * FROM dlock_task_capture(%s)', arguments)) FROM unnest(ARRAY[
	$$NULL$$, $$'no-such'$$, $$'task-error', NULL$$, $$'task-error', 0$$, $$'task-error', 1001$$, $$'task-error', from_states => '{}'$$,
	$$'task-error', from_states => '{NULL}'$$, $$'task-error', from_states => '{{ready}}'$$, $$'task-error', from_states => array_fill('ready'::text, '{17}')$$,
	$$'task-error', from_states => '{nowhere}'$$, $$'task-error', to_state => NULL$$, $$'task-error', to_state => 'nowhere'$$, $$'task-error', to_state => 'done'$$,
	$$'task-error', owner => ''$$, $$'task-error', ttl => '0'$$, $$'task-error', ttl => '1 year'$$, $$'task-error', on_timeout => 'done'$$, $$'task-error', on_timeout => 'nowhere'$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY n;

-- what needs a capture
SELECT pg_temp.raised(format('SELECT %s(%s)', function, arguments)) FROM unnest(ARRAY['dlock_task_renew', 'dlock_task_finish', 'dlock_task_fail', 'dlock_task_release']) function,
	unnest(ARRAY[$$NULL, 'a', 1$$, $$'task-error', NULL, 1$$, $$'task-error', 'a', NULL$$, $$'task-error', 'a', -1$$, $$'no-such', 'a', 1$$, $$'task-error', 'no-such', 1$$]) WITH ORDINALITY AS u(arguments, n) ORDER BY function, n;
SELECT pg_temp.raised(format('SELECT %s', call)) FROM unnest(ARRAY[
	format($$dlock_task_renew('task-error', 'a', %s, '-1 s')$$, :token), format($$dlock_task_finish('task-error', 'a', %s, 'nowhere')$$, :token),
	format($$dlock_task_fail('task-error', 'a', %s, state => 'nowhere')$$, :token), format($$dlock_task_fail('task-error', 'a', %s, state => 'done')$$, :token),
	$$dlock_task_finish('task-error', 'b', 1)$$, $$dlock_task_purge('task-error', NULL)$$, $$dlock_task_purge('task-error', '1 s', 0)$$, $$dlock_task_purge('task-error', '-1 s')$$]) WITH ORDINALITY AS u(call, n) ORDER BY n;

-- not where nothing may be written
BEGIN TRANSACTION READ ONLY;
SELECT pg_temp.raised('SELECT dlock_task_put(''task-error'', ''c'')');
SELECT pg_temp.raised('SELECT * FROM dlock_task_capture(''task-error'')');
SELECT count(*) FROM dlock_tasks WHERE queue = 'task-error';
COMMIT;

-- all as it was
(TABLE before EXCEPT TABLE tasks) UNION ALL (TABLE tasks EXCEPT TABLE before);
SELECT count(*) FROM before;
SELECT dlock_queue_drop('task-error');
