package dlock

// Elections, following who holds a lock, and tasks of a queue.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// After errors.
const (
	retryEvery   = 500 * time.Millisecond
	longestRetry = 10 * time.Second
)

// How long a capture waits for tasks; so long, it holds a snapshot, and the end waits for it.
const captureFor = time.Second

// Elect campaigns until the context is done.  A leader has a term: "lead" is called, with a context
// that is cancelled at the end of the term, and resigns by returning.  An error of its own ends the election.
func (s *Session) Elect(ctx context.Context, name string, lead func(context.Context, *Lease) error, options ...Option) error {
	if _, err := setOf(options); err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	ctx, cancel := s.within(WithTask(ctx, ""))
	defer cancel()
	options = append(options[:len(options):len(options)], Wait(Forever))
	for ctx.Err() == nil {
		var own error
		err := s.Lease(ctx, name, func(ctx context.Context, lease *Lease) error {
			err := lead(ctx, lease)
			if ctx.Err() == nil {
				own = err
			}
			return err
		}, options...)
		if own != nil {
			return err
		}
		if err != nil && s.gaveUp(ctx) == nil && !errors.Is(err, ErrLost) {
			s.logger.Warn("dlock: an election goes on", "name", name, "error", err)
			s.nap(ctx, retryEvery, nil)
		}
	}
	return nil
}

// A Holder of a lock.
type Holder struct {
	Token   int64           `json:"token"`
	Owner   string          `json:"owner"`
	Payload json.RawMessage `json:"payload"`
}

var watchKind = &kind{key: "watch", rank: 1, text: "SELECT array_agg(l.token ORDER BY i)::text, json_agg(l ORDER BY i)::text " +
	"FROM unnest($1::text[]) WITH ORDINALITY AS e(n, i) LEFT JOIN LATERAL @dlock_watch(n, NULL, '0') AS l ON true"}

// Watch tells the holder of a lock, or nil if there is none, at first and then whenever another one is seen, until the context is done,
// or "see" returns an error.  It looks in such intervals; all that are watched are asked for at once.
func (s *Session) Watch(ctx context.Context, name string, every time.Duration, see func(*Holder) error) error {
	if every < time.Millisecond {
		return errors.New("dlock: the interval must be a millisecond at least")
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	for seen := ""; s.gaveUp(ctx) == nil; s.nap(ctx, time.Until(time.Now().Truncate(every).Add(every)), nil) {
		a := s.ask(ctx, watchKind, name)
		if a.err != nil && s.gaveUp(ctx) == nil && !errors.Is(a.err, ErrUnreachable) {
			return Explain(a.err)
		}
		if a.err != nil || a.value == seen {
			continue
		}
		seen = a.value
		var holder *Holder
		if seen != "NULL" {
			holder = &Holder{}
			if err := json.Unmarshal(*a.note, holder); err != nil {
				return err
			}
		}
		if err := see(holder); err != nil {
			return err
		}
	}
	return nil
}

// Concurrency is how many tasks a worker has at a time; by default one.
func Concurrency(count int) Option { return func(o *optionSet) { o.concurrency = count } }

// FromStates are those of the tasks to be captured, instead of the queue's.
func FromStates(states ...string) Option { return func(o *optionSet) { o.from = arrayOf(states) } }

// ToState is the state of a task that is worked on; by default "working".
func ToState(state string) Option { return func(o *optionSet) { o.to = state } }

// OnTimeout is the state of a task whose capture has timed out.
func OnTimeout(state string) Option { return func(o *optionSet) { o.onTimeout = state } }

// Grace is how long a worker that ends waits for what is under way; by default for ever.
func Grace(span time.Duration) Option { return func(o *optionSet) { o.grace = span } }

// A Task of a queue.  A transaction of the task finishes it.
type Task struct {
	hold
	Queue, Key         string
	Token              int64
	Payload            json.RawMessage
	Priority, Attempts int
	FromState          string
	State              string // the state it is to have when it is finished, if not that of the queue
}

func taskKind(key, call string) *kind {
	return &kind{key: key, text: "SELECT array_agg(@dlock_task_" + call + " ORDER BY i)::text " +
		"FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY AS e(q, k, t, x, i)"}
}

var (
	taskRenewKind   = taskKind("task renew", "renew(q, k, t)")
	taskFinishKind  = taskKind("task finish", "finish(q, k, t, state => x)")
	taskFailKind    = taskKind("task fail", "fail(q, k, t, error => x)")
	taskReleaseKind = taskKind("task release", "release(q, k, t)")
)

// Work on tasks of a queue until the context is done, and then wait for what is under way; after the grace its contexts are cancelled, and what
// ends with an error then is given back as if it had not been captured.  A task whose handler returns an error has failed.
func (s *Session) Work(ctx context.Context, queue string, handler func(context.Context, *Task) error, options ...Option) error {
	o, err := setOf(options)
	if err != nil {
		return err
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	stop, cancel := s.within(ctx)
	defer cancel()
	work, abort := context.WithCancel(detached{ctx})
	defer abort()
	captures := newLines(s.source, 1)
	defer captures.close()
	ended := make(chan bool, o.concurrency)
	running, retry := 0, retryEvery
	for stop.Err() == nil {
		if running == o.concurrency || len(ended) > 0 {
			select {
			case <-ended:
				running--
			case <-stop.Done():
			}
			continue
		}
		a := captures.ask(answerWithin+captureFor, captureKind, queue, fmt.Sprint(o.concurrency-running), o.from, o.to,
			s.client+"#"+queue, interval(o.ttl), o.onTimeout, interval(shorter(captureFor, o.ttl/6)))
		if a.err != nil {
			s.logger.Warn("dlock: a worker goes on", "queue", queue, "error", a.err)
			s.nap(stop, retry, nil)
			retry = shorter(2*retry, longestRetry)
			continue
		}
		retry = retryEvery
		for _, row := range a.rows {
			t := s.newTask(queue, captures.where(), row, o.ttl, a.sent)
			running++
			go func() {
				defer func() { ended <- true }() // also if the handler ends its goroutine
				if err := t.work(stop, work, handler); err != nil {
					s.logger.Warn("dlock: a task was not finished", "queue", queue, "key", t.Key, "error", err)
				}
			}()
		}
	}
	if o.grace < Forever {
		timer := time.AfterFunc(o.grace, abort)
		defer timer.Stop()
	}
	for ; running > 0; running-- {
		<-ended
	}
	return nil
}

var captureKind = &kind{rank: 1, text: "SELECT key, token::text, payload::text, priority::text, attempts::text, from_state FROM @dlock_task_capture(" +
	"$1, count => $2::integer, from_states => $3::text[], to_state => $4, owner => $5, ttl => $6::interval, on_timeout => $7, wait => $8::interval)"}

// A context that has the values of another one, and does not end.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

func (s *Session) newTask(queue, schema string, row []*string, ttl time.Duration, sent time.Time) *Task {
	t := &Task{Queue: queue, Key: *row[0], FromState: *row[5]}
	t.Token, _ = parse(*row[1])
	if row[2] != nil {
		t.Payload = json.RawMessage(*row[2])
	}
	t.Priority, _ = strconv.Atoi(*row[3])
	t.Attempts, _ = strconv.Atoi(*row[4])
	t.what, t.task = fmt.Sprintf("task %q of queue %q", t.Key, queue), newTask()
	t.renewal, t.rows = taskRenewKind, [][]any{t.row(nil)}
	t.leave = func() string { // it fails, as a task that is finished cannot fail, if an earlier transaction has finished it
		state := "NULL"
		if t.State != "" {
			state = literal(t.State)
		}
		return fmt.Sprintf("SELECT CASE WHEN NOT %[1]sdlock_task_finish(%[2]s, %[3]s, %[4]d, state => %[5]s) THEN %[1]sdlock_task_fail(%[2]s, %[3]s, %[4]d) END",
			schema, literal(queue), literal(t.Key), t.Token, state)
	}
	t.s = s
	s.mu.Lock()
	defer s.mu.Unlock()
	t.begin(ttl, sent)
	return t
}

func (t *Task) row(extra any) []any { return []any{t.Queue, t.Key, fmt.Sprint(t.Token), extra} }

func (t *Task) work(stop, work context.Context, handler func(context.Context, *Task) error) (err error) {
	defer func() {
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		t.end()
	}()
	if stop.Err() != nil || t.Lost() {
		return t.settle(taskReleaseKind, nil)
	}
	ctx, cancel := t.Context(work)
	defer cancel()
	err = handler(ctx, t)
	t.s.mu.Lock()
	over := t.ended() != nil || !t.s.holds[&t.hold]
	t.s.mu.Unlock()
	switch {
	case over:
		return nil
	case err != nil && work.Err() != nil:
		return t.settle(taskReleaseKind, nil)
	case err != nil:
		return t.settle(taskFailKind, err.Error())
	case t.State != "":
		return t.settle(taskFinishKind, t.State)
	}
	return t.settle(taskFinishKind, nil)
}

// Tell the server how it has ended; again, if that does not answer: that does no harm.
func (t *Task) settle(k *kind, extra any) error {
	for {
		left := t.Remaining()
		a := t.s.lines.ask(shorter(urgentWithin, left+captureFor), k, t.row(extra)...)
		if a.err == nil || left == 0 || !errors.Is(a.err, ErrUnreachable) {
			return Explain(a.err)
		}
		time.Sleep(retryEvery)
	}
}
