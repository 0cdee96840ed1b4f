-- Tasks that are put off: put with a delay, or given back for later.
\set SHOW_CONTEXT never
\set VERBOSITY default
CREATE FUNCTION pg_temp.shown() RETURNS TABLE (key text, state text, attempts int, owner text, expires boolean, minutes int, error text)
BEGIN ATOMIC
	SELECT key, state, attempts, owner, expires_at IS NOT NULL, round(extract(epoch FROM ready_at - clock_timestamp()) / 60)::int, error
	  FROM dlock_tasks WHERE queue = 'task-delay' ORDER BY key;
END;
SELECT dlock_queue_create('task-delay', max_attempts => 3, retry_delay => '5 min');

-- none can be captured before
SELECT dlock_task_put('task-delay', 'a', delay => '1 h'), dlock_task_put('task-delay', 'b', delay => '0'),
	dlock_task_put('task-delay', 'c', delay => NULL), dlock_task_put('task-delay', 'd', priority => -1, state => 'later', delay => '30 min');
SELECT dlock_task_put('task-delay', 'a'), dlock_task_put('task-delay', 'b', delay => '1 h');
SELECT * FROM pg_temp.shown();
SELECT key FROM dlock_task_capture('task-delay', 10, '{ready, later}', owner => 'w', ttl => '1 h') ORDER BY key;

-- given up for a while: the capture has ended, the error and the attempts stay
SELECT token AS b FROM dlock_tasks WHERE queue = 'task-delay' AND key = 'b' \gset
SELECT token AS c FROM dlock_tasks WHERE queue = 'task-delay' AND key = 'c' \gset
SELECT dlock_task_fail('task-delay', 'b', :b, error => 'busy', delay => '10 min'), dlock_task_release('task-delay', 'c', :c, delay => '20 min');
SELECT * FROM pg_temp.shown();
SELECT count(*) FROM dlock_task_capture('task-delay', 10, '{ready, later}');
SELECT dlock_task_renew('task-delay', 'b', :b);
\set VERBOSITY sqlstate
SELECT dlock_task_finish('task-delay', 'b', :b);
SELECT dlock_task_set('task-delay', 'b', :b, 'ready');
\set VERBOSITY default

-- whoever sets the state ends the delay, and the next capture is an attempt more
SELECT dlock_task_set('task-delay', 'b', NULL, 'ready'), dlock_task_set('task-delay', 'd', NULL, 'ready');
SELECT * FROM pg_temp.shown();
SELECT key, attempts, token > :b AS later FROM dlock_task_capture('task-delay', 10, owner => 'w', ttl => '1 h') ORDER BY key;

-- in another state; and the last attempt is parked at once
SELECT token AS b FROM dlock_tasks WHERE queue = 'task-delay' AND key = 'b' \gset
SELECT token AS d FROM dlock_tasks WHERE queue = 'task-delay' AND key = 'd' \gset
SELECT dlock_task_release('task-delay', 'd', :d, 'later', '40 min'), dlock_task_fail('task-delay', 'b', :b, 'ready', 'busy', '0');
SELECT token AS b FROM dlock_task_capture('task-delay', owner => 'w', ttl => '1 h') \gset
SELECT dlock_task_fail('task-delay', 'b', :b, error => 'too often', delay => '1 h');
SELECT * FROM pg_temp.shown();

-- a delay that is over; without one, the back-off of the queue counts
SELECT dlock_task_put('task-delay', 'e', delay => '1 h');
UPDATE _dlock.task SET ready_at = now(), put_off = now() WHERE key = 'e';
SELECT token AS e FROM dlock_task_capture('task-delay', owner => 'w', ttl => '1 h') \gset
SELECT dlock_task_fail('task-delay', 'e', :e, error => 'kept');
SELECT * FROM pg_temp.shown();
UPDATE _dlock.task SET ready_at = now(), put_off = now() WHERE key = 'e';
SELECT token AS e FROM dlock_task_capture('task-delay', owner => 'w', ttl => '1 h') \gset
SELECT dlock_task_release('task-delay', 'e', :e);

-- what cannot be
SELECT dlock_task_put('task-delay', 'x', delay => '-1 s');
SELECT dlock_task_put('task-delay', 'x', delay => '36501 days');
SELECT dlock_task_put('task-delay', 'x', state => 'done', delay => '1 s');
SELECT token AS e FROM dlock_task_capture('task-delay', owner => 'w', ttl => '1 h') \gset
SELECT dlock_task_fail('task-delay', 'e', :e, delay => '-1 s');
SELECT dlock_task_release('task-delay', 'e', :e, delay => '36501 days');
SELECT * FROM pg_temp.shown();
SELECT dlock_queue_drop('task-delay');

-- many delays that end at one time: a capture looks at some of them, and the next ones find the others
SELECT dlock_queue_create('task-many');
SELECT count(dlock_task_put('task-many', i::text, delay => '1 ms')) FROM generate_series(1, 1200) i;
SELECT pg_sleep(0.002);
SELECT count(*) FROM dlock_task_capture('task-many');
SELECT count(*) FROM _dlock.task WHERE put_off IS NOT NULL;
SELECT count(*) FROM dlock_task_capture('task-many', 1000);
SELECT count(*) FROM dlock_task_capture('task-many', 1000);
SELECT dlock_queue_drop('task-many');
