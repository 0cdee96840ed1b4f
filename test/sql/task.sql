-- Proves: a task is put once, goes only where its queue lets it, is captured with a token that ends with the capture, and is parked when its attempts are used up; what is rolled back has not happened.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset null '(null)'
SET statement_timeout = '60 s';

-- put: once for each key
SELECT dlock_queue_create('task-1', max_attempts => 3, retry_delay => '0');
SELECT dlock_task_put('task-1', 'a', '{"n": 1}'), dlock_task_put('task-1', 'b', priority => -1), dlock_task_put('task-1', 'c', state => 'later');
SELECT dlock_task_put('task-1', 'a', '{"n": 2}', 7, 'later') AS again;
SELECT key, state, priority, attempts, token, owner, expires_at, finished_at, error, payload FROM dlock_tasks WHERE queue = 'task-1' ORDER BY key;

-- capture: by priority, then by age; only in the states asked for; with tokens that ascend
SELECT key, token > 0 AS token, payload, priority, attempts, from_state, expires_at BETWEEN clock_timestamp() + '59 min' AND clock_timestamp() + '1 h' AS expires
  FROM dlock_task_capture('task-1', 10, owner => 'task-w', ttl => '1 h');
SELECT key, state, attempts, owner, expires_at > now() AS expires FROM dlock_tasks WHERE queue = 'task-1' ORDER BY key;
SELECT token AS ta FROM dlock_tasks WHERE queue = 'task-1' AND key = 'a' \gset
SELECT token AS tb FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b' \gset
SELECT count(*) AS none FROM dlock_task_capture('task-1', 10);
SELECT key, from_state FROM dlock_task_capture('task-1', 10, '{nowhere, later, ready}', 'checking', on_timeout => 'ready');
SELECT dlock_task_finish('task-1', 'c', token) FROM dlock_tasks WHERE queue = 'task-1' AND key = 'c';

-- states in the order given, and no more tasks than asked for
SELECT dlock_queue_create('task-2', retry_delay => '0');
SELECT count(dlock_task_put('task-2', 't' || i, state => (ARRAY['s0', 's1', 's2'])[1 + i % 3])) FROM generate_series(1, 12) i;
SELECT array_agg(key || ' ' || from_state) FROM dlock_task_capture('task-2', 6, '{s2, s0}');
SELECT array_agg(key || ' ' || from_state) FROM dlock_task_capture('task-2', 6, '{s2, s0}');
SELECT dlock_queue_drop('task-2');

-- set under a capture, which goes on; without its token, it is in the way
SELECT dlock_task_set('task-1', 'a', :ta, 'half');
SELECT key, state, owner FROM dlock_tasks WHERE queue = 'task-1' AND key = 'a';
SELECT dlock_task_set('task-1', 'a', NULL, 'ready');

-- extend: never shorter, but by those who say so
SELECT expires_at AS before FROM dlock_tasks WHERE queue = 'task-1' AND key = 'a' \gset
SELECT dlock_task_renew('task-1', 'a', :ta), dlock_task_renew('task-1', 'a', :tb), dlock_task_renew('task-1', 'b', :tb, '2 h');
SELECT key, expires_at >= :'before' AS not_shorter, expires_at > now() + '90 min' AS longer FROM dlock_tasks WHERE queue = 'task-1' AND owner IS NOT NULL ORDER BY key;
SELECT dlock_task_renew('task-1', 'b', :tb, '1 min');
SELECT expires_at < now() + '5 min' AS shorter FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';

-- finish: once, and again by the same token if the answer was lost
SELECT dlock_task_finish('task-1', 'a', :ta), dlock_task_finish('task-1', 'a', :ta);
\set VERBOSITY sqlstate
SELECT dlock_task_finish('task-1', 'a', :ta, 'elsewhere');
SELECT dlock_task_finish('task-1', 'b', :ta);
SELECT dlock_task_finish('task-1', 'a', :ta + 1000000);
\set VERBOSITY default
SELECT dlock_task_renew('task-1', 'a', :ta);

-- release does not count; fail does, until the task is parked
SELECT dlock_task_release('task-1', 'b', :tb);
SELECT state, attempts, owner, expires_at FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
SELECT attempts, dlock_task_fail('task-1', key, token, error => 'first') FROM dlock_task_capture('task-1');
SELECT attempts, dlock_task_fail('task-1', key, token, 'retry', 'second') FROM dlock_task_capture('task-1');
SELECT attempts, dlock_task_fail('task-1', key, token, 'retry', repeat(chr(228), 1200)) FROM dlock_task_capture('task-1', 1, '{ready, retry}');
SELECT state, attempts, length(error) FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
SELECT dlock_task_set('task-1', 'b', NULL, 'ready');
SELECT state, attempts, error FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';

-- released to another state, it is tried anew there
SELECT dlock_queue_create('task-5', '{a -> b, b -> a, b -> c, c -> done}', max_attempts => 3, retry_delay => '0');
SELECT dlock_task_put('task-5', 'x', state => 'a');
SELECT dlock_task_fail('task-5', key, token) FROM dlock_task_capture('task-5', from_states => '{a}', to_state => 'b');
SELECT token AS t FROM dlock_task_capture('task-5', from_states => '{a}', to_state => 'b') \gset
SELECT dlock_task_release('task-5', 'x', :t, 'done');
SELECT dlock_task_release('task-5', 'x', :t, 'nowhere');
SELECT dlock_task_release('task-5', 'x', :t, 'c');
SELECT state, attempts, owner, finished_at FROM dlock_tasks WHERE queue = 'task-5';
SELECT dlock_queue_drop('task-5');

-- a capture that was rolled back has not been, and its token is not used again
BEGIN;
SELECT token AS t1 FROM dlock_task_capture('task-1') \gset
ROLLBACK;
SELECT state, attempts FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
\set VERBOSITY sqlstate
SELECT dlock_task_finish('task-1', 'b', :t1);
\set VERBOSITY default
SELECT token AS t2 FROM dlock_task_capture('task-1') \gset
SELECT :t2 > :t1 AS larger;
BEGIN;
SELECT dlock_task_finish('task-1', 'b', :t2);
SAVEPOINT s;
SELECT dlock_task_set('task-1', 'b', NULL, 'ready');
ROLLBACK TO s;
SELECT state FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
ROLLBACK;
SELECT state, owner IS NOT NULL AS captured FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';

-- a capture has ended at its deadline, and the task is where it goes then, whoever looks; no row
-- has changed
SELECT dlock_task_renew('task-1', 'b', :t2, '1 h');
UPDATE _dlock.task SET expires_at = expires_at - interval '2 h', ready_at = ready_at - interval '2 h' WHERE key = 'b' AND done = 0;
SELECT state, attempts, owner, expires_at, error FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
SELECT dlock_task_renew('task-1', 'b', :t2), dlock_task_release('task-1', 'b', :t2);
\set VERBOSITY sqlstate
SELECT dlock_task_finish('task-1', 'b', :t2);
SELECT dlock_task_set('task-1', 'b', :t2, 'half');
SELECT dlock_task_release('task-1', 'b', :t2, 'half');
\set VERBOSITY default
SELECT attempts, from_state, token > :t2 AS larger FROM dlock_task_capture('task-1');
SELECT error FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';

-- the last attempt times out to the parked ones
UPDATE _dlock.task SET attempts = 2, expires_at = now() - interval '1 s', ready_at = now() - interval '1 s' WHERE key = 'b' AND done = 0;
SELECT attempts, from_state FROM dlock_task_capture('task-1');
UPDATE _dlock.task SET expires_at = now() - interval '1 s' WHERE key = 'b' AND done = 0;
SELECT state, attempts, owner, error FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';
SELECT dlock_task_set('task-1', 'b', NULL, 'ready');
SELECT state, attempts, error FROM dlock_tasks WHERE queue = 'task-1' AND key = 'b';

-- if others finish a task after its capture was lost, the capture did not
SELECT dlock_queue_create('task-6', max_attempts => 3, retry_delay => '0'), dlock_task_put('task-6', 'x');
SELECT token AS t FROM dlock_task_capture('task-6') \gset
UPDATE _dlock.task SET expires_at = now() - interval '1 s' WHERE key = 'x' AND done = 0;
SELECT dlock_task_set('task-6', 'x', NULL, 'done');
\set VERBOSITY sqlstate
SELECT dlock_task_finish('task-6', 'x', :t);
\set VERBOSITY default

-- a key is free again once its task is finished; each task has its own row, and its own answers
SELECT dlock_task_put('task-6', 'x'), dlock_task_put('task-6', 'x');
SELECT token AS t FROM dlock_task_capture('task-6', ttl => '1 h') \gset
SELECT dlock_task_set('task-6', 'x', :t, 'done');
SELECT dlock_task_finish('task-6', 'x', :t);
SELECT dlock_task_put('task-6', 'x');
SELECT dlock_task_finish('task-6', 'x', :t);
SELECT state, finished_at IS NOT NULL AS finished FROM dlock_tasks WHERE queue = 'task-6' AND key = 'x' ORDER BY created_at;
SELECT token AS t FROM dlock_task_capture('task-6', ttl => '1 h') \gset
SELECT dlock_task_finish('task-6', 'x', :t);

-- each failed or timed out attempt puts the next one off twice as long, up to an hour
SELECT dlock_queue_create('task-7', max_attempts => NULL, retry_delay => '3 s'), dlock_task_put('task-7', 'x');
CREATE TEMP TABLE wait (n int, failed interval, timed_out interval);
DO $$
DECLARE t record;
BEGIN
    FOR i IN 1 .. 13 LOOP
        SELECT * INTO t FROM dlock_task_capture('task-7', ttl => '10 s');
        INSERT INTO wait SELECT i, NULL, ready_at - expires_at FROM _dlock.task WHERE key = 'x' AND done = 0;
        PERFORM dlock_task_fail('task-7', 'x', t.token);
        UPDATE wait SET failed = ready_at - changed_at FROM _dlock.task WHERE key = 'x' AND done = 0 AND n = i;
        UPDATE _dlock.task SET ready_at = now(), put_off = now() WHERE key = 'x' AND done = 0;
    END LOOP;
END $$;
TABLE wait;
SELECT dlock_queue_drop('task-7');

-- where tasks begin, or are parked, none is finished
SELECT dlock_task_put('task-6', 'y');
SELECT token AS t FROM dlock_task_capture('task-6', ttl => '1 h') \gset
SELECT dlock_task_finish('task-6', 'y', :t, 'ready');
SELECT dlock_task_finish('task-6', 'y', :t, 'parked');
-- in any other state it can be
SELECT dlock_task_finish('task-6', 'y', :t, 'cancelled');
SELECT key, state, attempts, finished_at IS NOT NULL AS finished FROM dlock_tasks WHERE queue = 'task-6' AND key = 'y';
SELECT dlock_queue_drop('task-6'), dlock_queue_drop('task-6');
SELECT count(*) FROM _dlock.task WHERE key = 'y';

SELECT dlock_task_set('task-1', 'b', NULL, 'done');
SELECT count(*) FROM dlock_task_capture('task-1', 10);
SELECT dlock_task_purge('task-1', '1 h'), dlock_task_purge('task-1', '0', 1), dlock_task_purge('task-1', '0'), dlock_task_purge('task-1', '0');

-- transitions that are declared are all that there is
SELECT dlock_queue_create('task-3', '{ready->working, working -> ready, working   ->   sending, "sending -> done", ready -> cancelled}', max_attempts => 1, retry_delay => '0');
SELECT dlock_task_put('task-3', 'x'), dlock_task_put('task-3', 'y'), dlock_task_put('task-3', 'z');
SELECT dlock_task_set('task-3', 'x', NULL, 'done');
SELECT dlock_task_set('task-3', 'x', NULL, 'ready');
SELECT dlock_task_set('task-3', 'x', NULL, 'cancelled');
SELECT dlock_task_set('task-3', 'x', NULL, 'ready');
SELECT key, token AS ty FROM dlock_task_capture('task-3') \gset
SELECT dlock_task_finish('task-3', 'y', :ty);
SELECT dlock_task_set('task-3', 'y', :ty, 'sending');
SELECT dlock_task_finish('task-3', 'y', :ty);
SELECT * FROM dlock_task_capture('task-3', from_states => '{cancelled}');
SELECT * FROM dlock_task_capture('task-3', to_state => 'sending');
SELECT * FROM dlock_task_capture('task-3', on_timeout => 'cancelled');
-- the way to the parked ones needs none
SELECT dlock_task_fail('task-3', key, token) FROM dlock_task_capture('task-3', on_timeout => 'sending');
SELECT key, state FROM dlock_tasks WHERE queue = 'task-3' ORDER BY key;
-- where a capture may not time out from, it is not moved to
SELECT dlock_queue_create('task-4', '{ready -> working, working -> ready, working -> sending, sending -> done}');
SELECT dlock_task_put('task-4', 'x');
SELECT dlock_task_set('task-4', key, token, 'sending') FROM dlock_task_capture('task-4');

SELECT dlock_queue_drop('task-1'), dlock_queue_drop('task-3'), dlock_queue_drop('task-4');
SELECT count(*) FROM _dlock.task;
