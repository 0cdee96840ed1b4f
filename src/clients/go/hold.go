package dlock

// What is held for a time: a lease, or a task that was captured.  The session renews it.
//
// The deadline is counted from before a request was sent that the server has granted, so it
// is never later than that of the server.  The work is told to stop when the server says
// that the lease is lost, and at the latest "margin" before the deadline: contexts of the lease
// are cancelled, and with them its transactions.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
)

// How often to renew, which is how a loss is learned of, and how long before its end a
// lease is given up that was not renewed; both a sixth of the ttl if that is less.
const (
	renewEvery = 2 * time.Second
	stopBefore = 5 * time.Second
)

// How long to go on trying to give back what is held, or may be, and to hear of a grant after the end of a wait.
const giveBackWithin = 3 * time.Second

type hold struct {
	s             *Session
	what          string
	task          string
	ttl           time.Duration
	every, margin time.Duration
	renewal       *kind
	rows          [][]any       // of a renewal
	onLost        func()        // or nil
	release       func() error  // of a lease
	enter, leave  func() string // what a transaction begins and ends with
	told          sync.WaitGroup

	// Protected by the session's mutex.
	cancels   map[*context.CancelFunc]bool // of the work's contexts
	deadline  time.Time
	renewAt   time.Time
	renewing  bool
	finishing int   // transactions that finish the task and commit: a renewal would wait for them, and then find nothing
	trouble   error // why it was not renewed
	err       error // why it is not held any more
	over      bool  // the work has ended
}

// A Transactor is a *Lease or a *Task.
type Transactor interface {
	Transact(ctx context.Context, run func(ctx context.Context, enter, leave func(Execer) error) error) error
}

func marginOf(ttl time.Duration) time.Duration { return shorter(ttl/6, stopBefore) }

// Keep what was granted by a request that was sent then; the mutex is held.
func (h *hold) begin(ttl time.Duration, sent time.Time) {
	s := h.s
	h.ttl = ttl
	h.every, h.margin = shorter(ttl/6, renewEvery), marginOf(ttl)
	h.cancels = map[*context.CancelFunc]bool{}
	h.deadline, h.renewAt = sent.Add(ttl), sent.Add(h.every)
	s.holds[h] = true
	s.arm(h.next())
}

// When something is to be done; the mutex is held.
func (h *hold) next() time.Time {
	stopAt := h.deadline.Add(-h.margin)
	if !h.renewing && h.finishing == 0 && h.renewAt.Before(stopAt) {
		return h.renewAt
	}
	return stopAt
}

// Context returns a child of the context for work of the lease: it is cancelled when the work is to end, and has the
// lease's task.
func (h *hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(WithTask(parent, h.task))
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.ended() != nil {
		cancel()
		return ctx, cancel
	}
	h.cancels[&cancel] = true
	return ctx, func() {
		cancel()
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		delete(h.cancels, &cancel)
	}
}

// Lost tells whether the work is to end, or has ended.
func (h *hold) Lost() bool { return h.Err() != nil }

// Err is why the work is to end, or nil.  The lease is over when it is released.
func (h *hold) Err() error {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.ended()
}

// Remaining is how long the lease lasts, at least, if no renewal succeeds; the work ends
// earlier.
func (h *hold) Remaining() time.Duration {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if left := time.Until(h.deadline); left > 0 {
		return left
	}
	return 0
}

// The same as Err; the mutex is held.
func (h *hold) ended() error {
	if h.s.holds[h] && !time.Now().Before(h.deadline.Add(-h.margin)) {
		why := "this process did not get to run"
		if h.trouble != nil {
			why = strings.TrimPrefix(h.trouble.Error(), "dlock: ")
		} else if h.renewing {
			why = "the server does not answer"
		}
		h.stop(failure(ErrUnreachable, h.trouble, "%s could not be renewed in time: %s", h.what, why))
	}
	if h.err == nil && h.over {
		return failure(ErrLost, nil, "%s is over, as the work has ended", h.what)
	}
	return h.err
}

// Stop the work, once; the mutex is held.
func (h *hold) stop(why error) {
	if !h.s.holds[h] {
		return
	}
	h.err = why
	h.drop()
	if h.onLost != nil {
		h.told.Add(1)
		go func() {
			defer h.told.Done()
			h.onLost()
		}()
	}
}

// It is not renewed any more, and its contexts end; the mutex is held.
func (h *hold) drop() {
	delete(h.s.holds, h)
	for cancel := range h.cancels {
		(*cancel)()
	}
	h.cancels = nil
}

// No more work.  Had it ended before?  The mutex is held.
func (h *hold) end() (late bool) {
	late = h.ended() != nil
	h.over = true
	h.drop()
	return late
}

// Ask for a renewal; the mutex is held.
func (h *hold) renew() {
	h.renewing = true
	left, oldest, lost := len(h.rows), time.Time{}, false
	var trouble error
	for _, row := range h.rows {
		h.s.lines.submit(&request{kind: h.renewal, row: row, within: h.margin, then: func(a answer) {
			h.s.mu.Lock()
			defer h.s.mu.Unlock()
			if a.err != nil {
				trouble = a.err
			} else if oldest.IsZero() || a.sent.Before(oldest) {
				oldest = a.sent
			}
			lost = lost || a.err == nil && a.value != "t"
			if left--; left == 0 {
				h.renewed(oldest, trouble, lost)
			}
		}})
	}
}

func (h *hold) renewed(sent time.Time, trouble error, lost bool) {
	h.renewing = false
	h.trouble = trouble
	switch {
	case lost:
		if h.finishing == 0 {
			h.stop(failure(ErrLost, nil, "%s is lost", h.what))
		}
		return
	case trouble != nil:
		h.renewAt = time.Now().Add(h.every / 4)
	default:
		h.renewAt = sent.Add(h.every)
		if deadline := sent.Add(h.ttl); h.deadline.Before(deadline) {
			h.deadline = deadline
		}
	}
	if trouble != nil && !h.s.inTrouble {
		go h.s.logger.Warn("dlock: renewals fail", "error", trouble)
	}
	h.s.inTrouble = trouble != nil
	h.s.arm(h.next())
}

// Transact runs what begins a transaction, calls "enter", does its work, calls "leave", and commits.  Errors give way to
// the reason why the lease has ended, if it has.  It is for adapters to drivers; see Tx.
func (h *hold) Transact(ctx context.Context, run func(ctx context.Context, enter, leave func(Execer) error) error) error {
	if err := h.Err(); err != nil {
		return err
	}
	ctx, cancel := h.Context(ctx)
	defer cancel()
	step := func(statement func() string) func(Execer) error {
		return func(tx Execer) (err error) {
			if statement != nil {
				_, err = tx.ExecContext(ctx, statement())
			}
			h.s.mu.Lock()
			defer h.s.mu.Unlock()
			if err = Explain(err); errors.Is(err, ErrLost) {
				h.stop(err)
			} else if err == nil {
				err = h.ended()
			}
			return err
		}
	}
	finishing := 0
	leave := func(tx Execer) error {
		if h.leave != nil {
			h.s.mu.Lock()
			finishing++
			h.finishing++
			h.s.mu.Unlock()
		}
		return step(h.leave)(tx)
	}
	err := run(ctx, step(h.enter), leave)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.finishing -= finishing
	if finishing > 0 && err == nil {
		delete(h.s.holds, h) // it cannot be lost any more
	} else {
		h.s.arm(h.next())
	}
	if ended := h.ended(); err != nil && ended != nil {
		return ended
	}
	return Explain(err)
}

// A Lease on a lock, or on several.  Its transactions present the tokens.
type Lease struct {
	hold
	Name   string
	Owner  string           // as dlock_leases shows it: client#task
	Token  int64            // the fencing token, of the first lock if there are several
	Tokens map[string]int64 // by the names of locks
	stakes []*stake
	counts bool // a release that is late may end one of its entries
	once   sync.Once
}

// Count it among what its owner has; the mutex is held.
func (l *Lease) count(more int) {
	for _, k := range l.stakes {
		l.s.adjust(k, more, 0)
	}
}

// Run runs work under the lease, if that is held still, and releases that when the work has ended, see Session.Lease.
func (l *Lease) Run(ctx context.Context, work func(context.Context, *Lease) error) (err error) {
	ctx, cancel := l.Context(ctx)
	defer cancel()
	defer func() {
		ended := l.Release()
		l.told.Wait()
		if ended != nil && (err == nil || errors.Is(err, ended) || errors.Is(err, context.Canceled)) {
			err = ended
		} else if ended != nil {
			err = &bothErrors{ended, err}
		}
	}()
	if err = l.Err(); err == nil {
		err = work(ctx, l)
	}
	return err
}

// Release gives the lease back.  The error tells if it was lost before.
func (l *Lease) Release() error {
	l.once.Do(func() {
		s := l.s
		s.mu.Lock()
		s.busy++
		late := l.end()
		l.count(-1)
		s.mu.Unlock()
		lost := l.giveBack()
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.ended()
		if lost && !late && l.err == nil {
			l.err = failure(ErrLost, nil, "%s was lost before the work had ended", l.what)
		}
	})
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.err
}

// Returns whether something was lost.  A request that was not answered may have released it; if the task has entered
// the lock twice, another one would end the other lease.  What counts is released until it is not held.
func (l *Lease) giveBack() (lost bool) {
	left, doubt, unknown, gone := l.rows, map[string]bool{}, [][]any{}, false
	for until := time.Now().Add(giveBackWithin); len(left) > 0 && time.Now().Before(until); {
		asked := make([]*request, len(left))
		for i, row := range left {
			asked[i] = l.s.lines.start(time.Until(until), releaseKind, row...)
		}
		var again [][]any
		for i, row := range left {
			name, _ := row[0].(string)
			switch a := <-asked[i].done; {
			case a.value == "t" && (!l.counts || l.another(name)):
			case a.err == nil && a.value != "t":
				lost = lost || !doubt[name]
				gone = true
			case (doubt[name] || a.doubt) && l.another(name):
				unknown = append(unknown, row)
			default:
				doubt[name] = doubt[name] || a.doubt || a.err == nil
				again = append(again, row)
			}
		}
		if left = again; len(left) > 0 {
			time.Sleep(giveBackWithin / 30)
		}
	}
	unknown = append(unknown, left...)
	for _, row := range unknown {
		l.s.doubt(stakeKey(l.Owner, row[0].(string)), time.Now().Add(l.ttl)) // a renewal may not have been heard of, too
	}
	return lost || (gone || len(unknown) > 0) && l.Remaining() == 0
}

// Has its owner another lease there?
func (l *Lease) another(name string) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	k := l.s.stakes[stakeKey(l.Owner, name)]
	return k != nil && k.held > 0
}

// Stop what is late, and renew what is due, or soon will be.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var next time.Time
	s.timerAt = time.Time{}
	for h := range s.holds {
		if h.ended() != nil {
			continue
		}
		if !h.renewing && h.finishing == 0 && !h.renewAt.After(now.Add(h.every/2)) {
			h.renew()
		}
		if at := h.next(); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if !next.IsZero() {
		s.arm(next)
	}
}

// Set the timer, if it is not to come earlier; the mutex is held.
func (s *Session) arm(at time.Time) {
	if !s.timerAt.IsZero() && !at.Before(s.timerAt) {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timerAt, s.timer = at, time.AfterFunc(time.Until(at), s.tick)
}

// Adds pairs to the setting, for this transaction.
func presentSQL(leases []*Lease) string {
	var pairs []string
	for _, lease := range leases {
		for name, token := range lease.Tokens {
			pairs = append(pairs, literal(fmt.Sprintf(`"%s=%d"`, strings.ReplaceAll(name, `"`, `""`), token)))
		}
	}
	return `SELECT set_config('dlock.tokens', concat_ws(',', nullif(t, ''), (SELECT string_agg(p, ',')
 FROM unnest(ARRAY[` + strings.Join(pairs, ", ") + `]) AS p WHERE position(p || ',' IN t || ',') = 0)), true)
 FROM (SELECT coalesce(current_setting('dlock.tokens', true), '')) AS old(t)`
}

// A literal that means the same in each encoding.
func literal(text string) string {
	var b strings.Builder
	b.WriteString("E'")
	for _, c := range text {
		switch {
		case c == '\\' || c == '\'':
			b.WriteString(string([]rune{c, c}))
		case c < 0x80:
			b.WriteRune(c)
		default:
			for _, unit := range utf16.Encode([]rune{c}) {
				fmt.Fprintf(&b, `\u%04X`, unit)
			}
		}
	}
	return b.String() + "'"
}
