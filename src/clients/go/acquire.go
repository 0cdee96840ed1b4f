package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// How long a request whose answer is not known is sent again, or tried to be undone, after it was
// to end; and how soon one is sent again to a server that is away.
const (
	doubtWithin = 3 * time.Second
	retryAfter  = 200 * time.Millisecond
)

// Forever is for Wait.
const Forever = time.Duration(math.MaxInt64)

// An Option is of a request, or of a worker.
type Option func(*optionSet)

type optionSet struct {
	ttl, wait, lockDelay, minHold, grace time.Duration
	mode, reentry, to                    string
	permits, payload, onTimeout, from    any // a text, or nil
	concurrency                          int
	onLost                               func(*Lease)
	err                                  error
}

// TTL is how long the lease lasts without a renewal; by default a minute.
func TTL(span time.Duration) Option { return func(o *optionSet) { o.ttl = span } }

// Wait so long for the lock, or Forever; by default not at all.
func Wait(limit time.Duration) Option { return func(o *optionSet) { o.wait = limit } }

// Mode of the lock, "shared" and others, as of dlock_acquire(); by default "exclusive".
func Mode(mode string) Option { return func(o *optionSet) { o.mode = mode } }

// Reenter lets a task enter its own lock again.
func Reenter() Option { return func(o *optionSet) { o.reentry = "count" } }

// LockDelay is how long the lock stays closed after the lease was lost.
func LockDelay(span time.Duration) Option { return func(o *optionSet) { o.lockDelay = span } }

// MinHold is how long after the grant a release takes effect, at the earliest.
func MinHold(span time.Duration) Option { return func(o *optionSet) { o.minHold = span } }

// Payload is shown with the lease: anything that json.Marshal() takes.
func Payload(value any) Option {
	return func(o *optionSet) {
		text, err := json.Marshal(value)
		o.payload, o.err = string(text), err
	}
}

// OnLost is called, by another goroutine, when the work is to end.
func OnLost(call func(*Lease)) Option { return func(o *optionSet) { o.onLost = call } }

func setOf(options []Option) (*optionSet, error) {
	o := &optionSet{ttl: time.Minute, mode: "exclusive", reentry: "deny", to: "working", concurrency: 1, grace: Forever}
	for _, set := range options {
		set(o)
	}
	if o.err == nil && (o.ttl < time.Microsecond || o.wait < 0 || o.lockDelay < 0 || o.minHold < 0 || o.grace < 0) {
		o.err = errors.New("dlock: a span of time must not be negative, and a ttl not zero")
	}
	if o.err == nil && (o.concurrency < 1 || o.concurrency > 1000) {
		o.err = errors.New("dlock: the concurrency must be from 1 to 1000")
	}
	return o, o.err
}

// What is asked for.
const (
	single = iota
	several
	hierarchy
)

var calls = [...]string{single: "dlock_acquire", several: "dlock_acquire_all", hierarchy: "dlock_acquire_path"}

const (
	manySQL = `SELECT %sdlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval, mode => $4, permits => $5::integer, reentry => $6,
 lock_delay => $7::interval, min_hold => $8::interval, keep => $9::interval)::text`
	aloneSQL = `SELECT %s($1%s, owner => $2, ttl => $3::interval, mode => $4, reentry => $5, lock_delay => $6::interval, min_hold => $7::interval,
 payload => $8::jsonb%s)::text`
)

func each(many string) func(*server) string {
	return func(s *server) string { return "SELECT " + s.schema + many + "($1::text[], $2::bigint[])::text" }
}

var (
	renewKind   = &kind{key: "renew", urgent: true, text: each("dlock_renew_each")}
	releaseKind = &kind{key: "release", urgent: true, text: each("dlock_release_each")}

	// Who holds a lock; or what an owner holds there.
	holderKind = &kind{key: "holder", urgent: true, text: func(s *server) string {
		return "SELECT array_agg(i ORDER BY i)::text, json_agg((SELECT l FROM " + s.schema + "dlock_lease(n) AS l WHERE o IS NULL OR owner = o LIMIT 1) ORDER BY i)::text " +
			"FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i)"
	}}
)

// A want is what is asked for, and for whom.
type want struct {
	*optionSet
	call        int
	names       []string
	label       string
	owner, task string
	keys        []string // owner and names
	place       string   // the key of its place in a queue, if it can have one
	until       time.Time
	wake        chan struct{} // it is time to ask again
	gone        chan struct{} // closed when it is over
	delay       time.Duration // if it has to do so by itself

	// Protected by the session's mutex.
	got     *turn
	inDoubt bool // it may have been granted what it has not heard of
	over    bool
}

// A turn that has come; without a token it never will.
type turn struct {
	token string
	sent  time.Time
}

func (s *Session) acquire(ctx context.Context, call int, names []string, options []Option) (*Lease, error) {
	o, err := setOf(options)
	if err != nil {
		return nil, err
	}
	own, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	w := &want{optionSet: o, call: call, names: names, label: strings.Join(names, ", "), wake: make(chan struct{}, 1), gone: make(chan struct{}), delay: shortestPoll}
	if o.wait < Forever {
		w.until = time.Now().Add(o.wait)
	}
	var inherited bool
	if w.task, inherited = ctx.Value(taskKey{}).(string); !inherited {
		w.task, _ = WithTask(ctx, "").Value(taskKey{}).(string)
	}
	w.owner = s.client + "#" + w.task
	for _, name := range names {
		w.keys = append(w.keys, placeOf(w.owner, name))
	}
	if call == single {
		w.place = w.keys[0]
	}
	if err := s.want(own, w); err != nil {
		end()
		return nil, closedOr(ctx, err)
	}

	// A caller that gives up is told at once; what is granted all the same is released.
	type result struct {
		lease *Lease
		err   error
	}
	done := make(chan result, 1)
	var settled atomic.Bool
	go func() {
		defer end()
		lease, err := s.obtain(own, w)
		if settled.CompareAndSwap(false, true) {
			done <- result{lease, err}
		} else if lease != nil {
			_ = lease.Release()
		}
	}()
	var r result
	select {
	case r = <-done:
	case <-own.Done():
		if settled.CompareAndSwap(false, true) {
			s.holdOff(w)
			r.err = own.Err()
		} else {
			r = <-done
		}
	}
	return r.lease, closedOr(ctx, r.err)
}

// Ask once: the tokens, or none.
func (s *Session) request(ctx context.Context, w *want, keep time.Duration, reentry string) ([]string, answer) {
	if w.call == single && w.payload == nil {
		shared := []any{interval(w.ttl), w.mode, w.permits, reentry, interval(w.lockDelay), interval(w.minHold), interval(keep)}
		k := &kind{key: fmt.Sprintf("acquire %q", shared), shared: shared, text: func(s *server) string {
			return fmt.Sprintf(manySQL, s.schema)
		}}
		a := s.lines.ask(ctx, true, k, answerWithin, w.names[0], w.owner)
		if a.err != nil || a.value == "NULL" {
			return nil, a
		}
		return []string{a.value}, a
	}
	row := []any{w.names[0], w.owner, interval(w.ttl), w.mode, reentry, interval(w.lockDelay), interval(w.minHold), w.payload}
	more := ""
	if w.call == several {
		row[0] = w.names
		more = "::text[]"
	} else if w.call == single {
		row = append(row, w.permits, interval(keep))
	}
	a := s.lines.ask(ctx, true, &kind{text: func(s *server) string {
		last := ""
		if w.call == single {
			last = ", permits => $9::integer, keep => $10::interval"
		}
		return fmt.Sprintf(aloneSQL, s.schema+calls[w.call], more, last)
	}}, answerWithin, row...)
	if a.err != nil || a.rows[0][0] == nil {
		return nil, a
	}
	return strings.Split(strings.Trim(*a.rows[0][0], "{}"), ","), a
}

// Ask, wait for a turn, and ask again.
//
// A request is in doubt if it may have been granted what it has not heard of: its answer was lost, or perhaps a turn
// was.  Then it asks for just that; and if it is given up, that is undone.
func (s *Session) obtain(ctx context.Context, w *want) (lease *Lease, err error) {
	defer s.unwant(w)
	defer s.forget(w)
	defer func() {
		if err != nil && s.setDoubt(w, false) {
			s.undo(w)
		}
	}()
	if w.wait > 0 && w.reentry == "deny" && s.holdsAny(w) {
		return nil, failure(ErrDeadlock, nil, "the task would wait for its own lease on %q", w.label)
	}
	placed := false // may it have a place?
	for limit := (time.Time{}); ; {
		if ctx.Err() != nil && !placed {
			return nil, ctx.Err()
		}
		got, inDoubt := s.turnOf(w), s.setDoubt(w, false)
		never := got != nil && got.token == ""
		last := never || ctx.Err() != nil || w.left() <= 0
		var a answer
		if got != nil && !never {
			if a = s.confirm(w, got); a.err == nil {
				return s.grant(w, []string{got.token}, a.sent), nil
			}
		} else {
			asking, keep, reentry := ctx, keepPlace, w.reentry
			if last {
				keep = 0
			} else if w.place != "" {
				s.expect(w)
			}
			if last && placed {
				asking = context.Background() // the place is given up
			}
			if (inDoubt || placed) && s.isAlone(w) {
				reentry = "return" // what it has been granted, or will be when its turn has come, is to count once
			}
			var tokens []string
			if tokens, a = s.request(asking, w, keep, reentry); tokens != nil {
				return s.grant(w, tokens, a.sent), nil
			}
			placed = placed || !last && w.place != "" && (a.err == nil || a.doubt)
		}
		raised := s.setDoubt(w, a.doubt || a.err != nil && inDoubt) // meanwhile
		if raised {
			s.setDoubt(w, true)
		}
		switch {
		case a.err == nil && never:
			return nil, failure(ErrDeadlock, nil, "the wait for %q would never have ended", w.label)
		case a.err == nil && !last:
			s.awaitTurn(ctx, w, placed)
		case a.err == nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case a.err == nil && (raised || s.turnOf(w) != nil): // a turn may have come just before
		case a.err == nil:
			return nil, s.refused(ctx, w)
		case ctx.Err() != nil && a.err == ctx.Err():
		case sqlState(a.err) == "40P01" && raised && ctx.Err() == nil: // perhaps for a lease that it has not heard of
		case !errors.Is(a.err, ErrUnreachable):
			return nil, Explain(a.err)
		default:
			if a.doubt && limit.IsZero() {
				limit = time.Now().Add(doubtWithin)
			}
			if last && (ctx.Err() != nil || !time.Now().Before(limit)) {
				return nil, a.err
			}
			if last {
				nap(ctx, retryAfter)
			} else {
				nap(ctx, shorter(retryAfter, w.left()))
			}
		}
	}
}

// How long it still waits.
func (w *want) left() time.Duration {
	if w.until.IsZero() {
		return w.wait
	}
	return time.Until(w.until)
}

// Say who holds it, or something above it, if somebody still does.
func (s *Session) refused(ctx context.Context, w *want) error {
	names, parts := w.names, strings.Split(w.names[0], "/")
	if w.call == hierarchy {
		names = nil
		for i := range parts {
			names = append(names, strings.Join(parts[:i+1], "/"))
		}
	}
	for _, name := range names {
		if holder, _ := s.holder(ctx, false, answerWithin, name, nil); holder != nil {
			err := failure(ErrRefused, nil, "lock %q is held by %q", w.label, holder.Owner)
			err.Holder = holder.Owner
			return err
		}
	}
	return failure(ErrRefused, nil, "lock %q is held", w.label)
}

// Who holds a lock, or what an owner has there, or nil.
func (s *Session) holder(ctx context.Context, stay bool, within time.Duration, name string, owner any) (holder *Holder, err error) {
	a := s.lines.ask(ctx, stay, holderKind, within, name, owner)
	if a.note != nil {
		a.err = json.Unmarshal(*a.note, &holder)
	}
	return holder, a.err
}

func (s *Session) grant(w *want, tokens []string, sent time.Time) *Lease {
	l := &Lease{Name: w.label, Owner: w.owner, Tokens: map[string]int64{}}
	l.task = w.task
	for i, name := range w.names {
		l.Tokens[name], _ = parse(tokens[i])
	}
	l.Token = l.Tokens[w.names[0]]
	l.keep(s, w.optionSet, sent)
	return l
}

// A turn may have come some time after it was asked for: when was the lease held for sure?
func (s *Session) confirm(w *want, got *turn) answer {
	if time.Since(got.sent) <= shorter(w.ttl/12, time.Second) {
		return answer{sent: got.sent}
	}
	a := s.lines.ask(context.Background(), true, renewKind, answerWithin, w.names[0], got.token)
	if a.err == nil && a.value != "t" {
		a.err = failure(ErrLost, nil, "the lease on %q was lost at once", w.label)
	}
	return a
}

// End what a request in doubt may have been granted.  That is found first, and released by its token: so a statement
// that is late can do no harm to what the task is granted afterwards.
func (s *Session) undo(w *want) {
	if !s.isAlone(w) {
		return
	}
	s.holdOff(w)
	until := time.Now().Add(doubtWithin)
	for _, name := range w.names {
		for ; time.Now().Before(until); time.Sleep(doubtWithin / 30) {
			holder, err := s.holder(context.Background(), true, time.Until(until), name, w.owner)
			if err == nil && holder != nil {
				err = s.lines.ask(context.Background(), true, releaseKind, time.Until(until), name, fmt.Sprint(holder.Token)).err
			}
			if err == nil {
				break
			}
		}
	}
}

// Has its task no other lease or request on these locks, which might be meant instead?
func (s *Session) isAlone(w *want) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range w.keys {
		if s.held[key] > 0 || s.wanted[key] > 1 {
			return false
		}
	}
	return true
}

// Let requests of its task that come from now on wait until it is over: what it may have been granted would refuse them.
func (s *Session) holdOff(w *want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range w.keys {
		if !w.over {
			s.leaving[key] = w
		}
	}
}

// One more request, once none is in its way that nobody waits for.
func (s *Session) want(ctx context.Context, w *want) error {
	for {
		var leaving *want
		s.mu.Lock()
		for _, key := range w.keys {
			if s.leaving[key] != nil {
				leaving = s.leaving[key]
			}
		}
		if leaving == nil {
			for _, key := range w.keys {
				count(s.wanted, key, 1)
			}
		}
		s.mu.Unlock()
		if leaving == nil {
			return nil
		}
		select {
		case <-leaving.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// One request less.
func (s *Session) unwant(w *want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.over = true
	close(w.gone)
	for _, key := range w.keys {
		count(s.wanted, key, -1)
		if s.leaving[key] == w {
			delete(s.leaving, key)
		}
	}
}

// Returns whether it was in doubt before.
func (s *Session) setDoubt(w *want, inDoubt bool) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, w.inDoubt = w.inDoubt, inDoubt
	return before
}

func (s *Session) holdsAny(w *want) bool {
	for _, name := range w.names {
		if s.heldBy(w.owner, name) > 0 {
			return true
		}
	}
	return false
}

func (s *Session) heldBy(owner, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[placeOf(owner, name)]
}

func placeOf(owner, name string) string { return owner + "\x00" + name }

func parse(token string) (int64, error) { return strconv.ParseInt(token, 10, 64) }
