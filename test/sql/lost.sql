-- Proves: of a lease that is lost, who asks or gives back is told false, and who would go on gets LK002; nothing of a later holder is touched.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
CREATE FUNCTION pg_temp.answer(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE query INTO answer;
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END $$;

SELECT dlock_acquire('lost-1', 'lost-a', '1 ms') AS old \gset
SELECT pg_sleep(0.01);
SELECT dlock_acquire('lost-1', 'lost-b', '1 h') AS new \gset
SELECT dlock_queue_create('lost-q', retry_delay => '0'), dlock_task_put('lost-q', 'k');
SELECT token AS capture FROM dlock_task_capture('lost-q', ttl => '1 ms') \gset
SELECT pg_sleep(0.01);
SELECT token AS new_capture FROM dlock_task_capture('lost-q', ttl => '1 h') \gset
SELECT dlock_group_create('lost-g', 1);
SELECT dlock_group_join('lost-g', 'm', '1 h') AS membership \gset
SELECT dlock_group_join('lost-g', 'm', '1 h') AS new_membership \gset
SELECT count(*) FROM dlock_group_renew('lost-g', :new_membership);

SELECT call, pg_temp.answer('SELECT ' || format(call, :old)) AS answer FROM unnest(ARRAY[
	$$dlock_check('lost-1', %s)$$, $$dlock_renew('lost-1', 'lost-a')$$, $$dlock_renew_token('lost-1', %s)$$,
	$$dlock_release('lost-1', 'lost-a')$$, $$dlock_release_token('lost-1', %s)$$, $$dlock_resign('lost-1', 'lost-a')$$,
	$$dlock_renew_all('lost-a')$$, $$dlock_release_all('lost-a')$$,
	$$dlock_convert('lost-1', %s, 'shared')$$, $$dlock_fence('lost-1', %s, live => true)$$]) WITH ORDINALITY u(call, n) ORDER BY n;
SELECT call, pg_temp.answer('SELECT ' || format(call, :capture)) AS answer FROM unnest(ARRAY[
	$$dlock_task_renew('lost-q', 'k', %s)$$, $$dlock_task_finish('lost-q', 'k', %s)$$, $$dlock_task_fail('lost-q', 'k', %s)$$,
	$$dlock_task_release('lost-q', 'k', %s)$$, $$dlock_task_set('lost-q', 'k', %s, 'x')$$]) WITH ORDINALITY u(call, n) ORDER BY n;
SELECT call, pg_temp.answer('SELECT ' || format(call, :membership)) AS answer FROM unnest(ARRAY[
	$$dlock_group_leave('lost-g', %s)$$, $$dlock_group_yield('lost-g', %s, ARRAY(SELECT token FROM dlock_group_partitions))$$,
	$$dlock_group_renew('lost-g', %s)$$]) WITH ORDINALITY u(call, n) ORDER BY n;

SELECT dlock_check('lost-1', :new), dlock_task_renew('lost-q', 'k', :new_capture), count(*) FROM dlock_group_renew('lost-g', :new_membership);
SELECT dlock_release_token('lost-1', :new), dlock_queue_drop('lost-q'), dlock_group_leave('lost-g', :new_membership), dlock_group_drop('lost-g');
