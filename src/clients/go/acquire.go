package dlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// How soon a request is sent again to a server that is away.
const retryAfter = 200 * time.Millisecond

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
	manySQL = `SELECT @dlock_acquire_each(names => $1::text[], owners => $2::text[], ttl => $3::interval, mode => $4, permits => $5::integer, reentry => $6,
 lock_delay => $7::interval, min_hold => $8::interval, keep => $9::interval)::text`
	aloneSQL = `SELECT @%s($1%s, owner => $2, ttl => $3::interval, mode => $4, reentry => $5, lock_delay => $6::interval, min_hold => $7::interval,
 payload => $8::jsonb%s)::text`
)

var (
	renewKind   = &kind{key: "renew", text: "SELECT @dlock_renew_each($1::text[], $2::bigint[])::text"}
	releaseKind = &kind{key: "release", text: "SELECT @dlock_release_each($1::text[], $2::bigint[])::text"}

	// Who holds a lock; or what an owner holds there.
	holderKind = &kind{key: "holder", text: "SELECT array_agg(i ORDER BY i)::text, " +
		"json_agg((SELECT l FROM @dlock_lease(n) AS l WHERE o IS NULL OR owner = o LIMIT 1) ORDER BY i)::text " +
		"FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS e(n, o, i)"}
)

// What requests that go in one statement have in common.
type terms struct {
	ttl, lockDelay, minHold, keep time.Duration
	mode, reentry                 string
	permits                       any
}

func (t *terms) list() []any {
	return []any{interval(t.ttl), t.mode, t.permits, t.reentry, interval(t.lockDelay), interval(t.minHold), interval(t.keep)}
}

// A want is what is asked for, and for whom.
type want struct {
	*optionSet
	call        int
	names       []string
	label       string
	owner, task string
	after       int64 // a token up to this is that of a lease before
	until       time.Time
	wake        chan struct{} // it is time to ask again
	gone        chan struct{} // closed when it is over
	delay       time.Duration // if it has to ask again by itself
	returns     bool          // what it is told twice is one lease: it has asked for what its owner may hold
	stakes      []*stake      // of the names

	// Protected by the session's mutex.
	got      *turn
	placed   bool // may it have a place?
	expected bool // turns are
	inDoubt  bool // it may have been granted what it has not heard of
	counts   bool // a release that was not heard may come late, and end what is entered
}

// A turn that has come; without a token it never will.
type turn struct {
	token string
	sent  time.Time
}

// A stake is what an owner has to do with a lock, as long as it holds it or wants it.  It is protected by the session's
// mutex.
type stake struct {
	key          string
	held, wanted int     // leases, and requests
	told         string  // a token that may be told once more, as a turn
	places       []*want // those of the requests that wait at a place, in order
	leaving      []*want // those that nobody waits for any more
}

func stakeKey(owner, name string) string { return owner + "\x00" + name }

func (s *Session) acquire(ctx context.Context, call int, names []string, options []Option) (*Lease, error) {
	o, err := setOf(options)
	if err == nil && len(names) == 0 {
		err = errors.New("dlock: there must be a name")
	}
	if err != nil {
		return nil, err
	}
	w := &want{optionSet: o, call: call, names: names, label: strings.Join(names, ", "), wake: make(chan struct{}, 1), gone: make(chan struct{}), delay: shortestPoll}
	if o.wait < Forever {
		w.until = time.Now().Add(o.wait)
	}
	var inherited bool
	if w.task, inherited = ctx.Value(taskKey{}).(string); !inherited {
		w.task = newTask()
	}
	w.owner = s.client + "#" + w.task
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if err := s.want(ctx, w); err != nil {
		s.end()
		return nil, err
	}
	lease, underWay, err := s.obtain(ctx, w)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherit(w)
	if lease != nil || underWay == nil && !w.placed && !w.inDoubt {
		s.finish(w)
		return lease, err
	}

	// Requests of its task that come from now on wait until it is over: what it may have been granted would refuse them.
	for _, k := range w.stakes {
		k.leaving = append(k.leaving, w)
	}
	go s.abandon(w, underWay)
	return nil, err
}

// One more request, once none is in its way that nobody waits for.
func (s *Session) want(ctx context.Context, w *want) error {
	for {
		var leaving *want
		s.mu.Lock()
		for _, name := range w.names {
			if k := s.stakes[stakeKey(w.owner, name)]; k != nil && len(k.leaving) > 0 {
				leaving = k.leaving[0]
			} else if k != nil && k.held > 0 && w.wait > 0 && w.reentry == "deny" {
				s.mu.Unlock()
				return failure(ErrDeadlock, nil, "the task would wait for its own lease on %q", w.label)
			}
		}
		if leaving == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-leaving.gone:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.over:
			return ErrClosed
		}
	}
	defer s.mu.Unlock()
	for _, name := range w.names {
		key := stakeKey(w.owner, name)
		if s.stakes[key] == nil {
			s.stakes[key] = &stake{key: key}
		}
		s.stakes[key].wanted++
		w.stakes = append(w.stakes, s.stakes[key])
	}
	w.after = s.newest
	s.inherit(w)
	return nil
}

// What could not be undone or released, a later request of the owner asks for, or undoes.
func (s *Session) doubt(key string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for other, end := range s.doubts {
		if end.Before(now) {
			delete(s.doubts, other)
		}
	}
	s.doubts[key] = until
}

// The same; the mutex is held.
func (s *Session) inherit(w *want) {
	if len(s.doubts) > 0 && w.isAlone() {
		for _, k := range w.stakes {
			w.counts = w.counts || time.Now().Before(s.doubts[k.key])
			w.inDoubt = w.inDoubt || w.counts
			delete(s.doubts, k.key)
		}
	}
}

// It is over: a turn that it has not taken is given back.  With it has gone the place that its owner had: other requests of
// the owner ask for one.  The mutex is held.
func (s *Session) finish(w *want) {
	close(w.gone)
	for _, k := range w.stakes {
		var hadPlace bool
		if k.places, hadPlace = without(k.places, w); hadPlace {
			s.waiting--
		}
		wakeUp(k.places)
		k.leaving, _ = without(k.leaving, w)
		s.adjust(k, 0, -1)
	}
	if w.got != nil && w.got.token != "" && w.got.token != w.stakes[0].told {
		s.decline(w.owner, w.names[0], w.got.token)
	}
	s.ended()
}

// The list without that one, if it is there.
func without(list []*want, w *want) ([]*want, bool) {
	for i, other := range list {
		if other == w {
			return append(list[:i:i], list[i+1:]...), true
		}
	}
	return list, false
}

// So many more leases and requests; the mutex is held.
func (s *Session) adjust(k *stake, held, wanted int) {
	k.held += held
	k.wanted += wanted
	if k.held == 0 && k.wanted == 0 {
		delete(s.stakes, k.key)
	}
}

// Has its task no other lease or request on these locks, which might be meant instead?  If nobody waits for any of its requests,
// any is meant.  The mutex is held.
func (w *want) isAlone() bool {
	for _, k := range w.stakes {
		if k.held > 0 || k.wanted > 1 && k.wanted > len(k.leaving) {
			return false
		}
	}
	return true
}

// Begin to ask: for a place, too, unless it is for the last time.
func (s *Session) request(w *want, last, inDoubt bool) *request {
	reentry, keep := w.reentry, time.Duration(0)
	s.mu.Lock()
	if w.returns = (inDoubt || w.placed) && w.isAlone(); w.returns && w.counts {
		reentry = "count"
	} else if w.returns {
		reentry = "return" // what it has been granted, or will be when its turn has come, is to count once
	}
	if !last {
		keep, w.placed = keepPlace, w.call == single
	}
	if w.placed && !w.expected {
		w.expected = true // a turn may come before the answer
		w.stakes[0].places = append(w.stakes[0].places, w)
		s.waiting++
	}
	s.mu.Unlock()
	if w.call == single && w.payload == nil {
		t := &terms{w.ttl, w.lockDelay, w.minHold, keep, w.mode, reentry, w.permits}
		return s.lines.start(answerWithin, &kind{key: *t, rank: 1, text: manySQL, shared: t.list}, w.names[0], w.owner)
	}
	row := []any{w.names[0], w.owner, interval(w.ttl), w.mode, reentry, interval(w.lockDelay), interval(w.minHold), w.payload}
	names, more := "", ""
	if w.call == several {
		row[0] = arrayOf(w.names)
		names = "::text[]"
	} else if w.call == single {
		row = append(row, w.permits, interval(keep))
		more = ", permits => $9::integer, keep => $10::interval"
	}
	return s.lines.start(answerWithin, &kind{rank: 1, text: fmt.Sprintf(aloneSQL, calls[w.call], names, more)}, row...)
}

// The tokens that were granted, or none.
func (a *answer) tokens() []string {
	text := a.value
	if len(a.rows) > 0 && a.rows[0][0] != nil {
		text = *a.rows[0][0]
	}
	if a.err != nil || text == "" || text == "NULL" {
		return nil
	}
	return strings.Split(strings.Trim(text, "{}"), ",")
}

// Ask, wait for a turn, and ask again.
//
// A request is in doubt if it may have been granted what it has not heard of: its answer was lost, or perhaps a turn
// was.  Then it asks for just that; and if it is given up, that is undone.
func (s *Session) obtain(ctx context.Context, w *want) (*Lease, *request, error) {
	for limit, late := (time.Time{}), 0; ; {
		if err := s.gaveUp(ctx); err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		got, inDoubt, hadPlace := w.got, w.inDoubt, w.placed
		w.inDoubt = false
		s.mu.Unlock()
		never := got != nil && got.token == ""
		last := never || w.left() <= 0
		var a answer
		var tokens []string
		if got != nil && !never {
			if a = s.confirm(ctx, w, got); a.err == nil && a.value != "t" { // lost at once: it asks again
				s.mu.Lock()
				w.got, w.inDoubt = nil, w.inDoubt || inDoubt
				s.mu.Unlock()
				continue
			} else if a.err == nil {
				tokens, w.returns = []string{got.token}, true
			}
		} else {
			var underWay *request
			a, underWay = s.wait(ctx, s.request(w, last, inDoubt))
			if underWay != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				w.inDoubt = w.inDoubt || inDoubt
				return nil, underWay, a.err
			}
			tokens = a.tokens()
		}
		if tokens != nil && time.Now().Before(a.sent.Add(w.ttl-marginOf(w.ttl))) {
			return s.grant(w, tokens, a.sent, w.onLost), nil, nil
		}
		if tokens != nil {
			// What the work could not begin with is given back, also if the caller gives up; once, it is asked for again.
			lease, released := s.grant(w, tokens, a.sent, nil), make(chan struct{})
			s.mu.Lock()
			if w.returns { // and not another turn, which may just have come
				w.got = nil
			}
			got = nil
			s.mu.Unlock()
			late++
			go func() {
				_ = lease.Release()
				close(released)
			}()
			select {
			case <-released:
			case <-ctx.Done():
			case <-s.over:
			}
			a = answer{err: failure(ErrUnreachable, nil, "the grant of %q was heard of too late", w.label), doubt: true}
		}
		s.mu.Lock()
		raised := w.inDoubt || w.got != got // meanwhile
		w.inDoubt = w.inDoubt || a.doubt || inDoubt && (a.err != nil || !w.returns)
		w.placed = w.placed && (hadPlace || a.err == nil || a.doubt) && !(last && a.err == nil)
		s.mu.Unlock()
		switch {
		case a.err == nil && never:
			return nil, nil, failure(ErrDeadlock, nil, "the wait for %q would never have ended", w.label)
		case a.err == nil && !last:
			s.awaitTurn(ctx, w)
		case a.err == nil && raised: // a turn may have come just before
		case a.err == nil:
			return nil, nil, s.refused(ctx, w)
		case sqlState(a.err) == "40P01" && raised: // perhaps for a lease that it has not heard of
		case !errors.Is(a.err, ErrUnreachable):
			return nil, nil, Explain(a.err)
		default:
			if a.doubt && limit.IsZero() {
				limit = time.Now().Add(giveBackWithin)
			}
			if late > 1 || last && !time.Now().Before(limit) {
				return nil, nil, a.err
			}
			rest := retryAfter
			if !last {
				rest = shorter(rest, w.left())
			}
			s.nap(ctx, rest, nil)
		}
	}
}

// End what nobody waits for any more: a request under way, a place, and what may have been granted unheard.
func (s *Session) abandon(w *want, underWay *request) {
	s.mu.Lock()
	inDoubt, got := w.inDoubt, w.got
	s.mu.Unlock()
	var a answer
	if underWay != nil {
		a = <-underWay.done
		inDoubt = a.doubt || inDoubt && (a.err != nil || !w.returns)
	}
	if a.tokens() == nil && got != nil {
		a, w.returns = answer{value: got.token, sent: got.sent}, true
	} else if a.tokens() == nil && w.placed {
		a = <-s.request(w, true, inDoubt).done
		inDoubt = a.doubt || inDoubt && (a.err != nil || !w.returns)
	}
	if tokens := a.tokens(); tokens != nil {
		_ = s.grant(w, tokens, a.sent, nil).Release()
	} else if inDoubt {
		s.undo(w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(w)
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
		if holder, _ := s.ask(ctx, holderKind, name, nil).holder(); holder != nil {
			err := failure(ErrRefused, nil, "lock %q is held by %q", w.label, holder.Owner)
			err.Holder = holder.Owner
			return err
		}
	}
	return failure(ErrRefused, nil, "lock %q is held", w.label)
}

// Who holds a lock, or what an owner has there, or nil.
func (a answer) holder() (holder *Holder, err error) {
	if a.note != nil {
		a.err = json.Unmarshal(*a.note, &holder)
	}
	return holder, a.err
}

func (s *Session) grant(w *want, tokens []string, sent time.Time, onLost func(*Lease)) *Lease {
	l := &Lease{Name: w.label, Owner: w.owner, Tokens: map[string]int64{}, stakes: w.stakes}
	l.s, l.task, l.what, l.renewal, l.release = s, w.task, fmt.Sprintf("the lease on %q", l.Name), renewKind, l.Release
	l.enter = func() string { return presentSQL([]*Lease{l}) }
	if onLost != nil {
		l.onLost = func() { onLost(l) }
	}
	for i, name := range w.names {
		l.Tokens[name], _ = parse(tokens[i])
		l.rows = append(l.rows, []any{name, tokens[i]})
	}
	l.Token = l.Tokens[w.names[0]]
	s.mu.Lock()
	defer s.mu.Unlock()
	l.counts = w.counts
	if w.returns {
		w.stakes[0].told = tokens[0]
	}
	if s.newest < l.Token {
		s.newest = l.Token
	}
	l.begin(w.ttl, sent)
	l.count(1)
	return l
}

// A turn may have come some time after it was asked for, and be that of a request before: when was the lease held for sure?
func (s *Session) confirm(ctx context.Context, w *want, got *turn) answer {
	if token, _ := parse(got.token); token > w.after && time.Since(got.sent) <= shorter(w.ttl/12, time.Second) {
		return answer{value: "t", sent: got.sent}
	}
	return s.ask(ctx, renewKind, w.names[0], got.token)
}

// End what a request in doubt may have been granted.  That is found first, and released by its token: so a statement
// that is late can do no harm to what the task is granted afterwards.
func (s *Session) undo(w *want) {
	s.mu.Lock()
	tries := w.isAlone()
	s.mu.Unlock()
	until := time.Now().Add(giveBackWithin)
	for i, name := range w.names {
		for ; tries; tries = time.Now().Before(until) {
			holder, err := s.lines.ask(time.Until(until), holderKind, name, w.owner).holder()
			if err == nil && holder != nil {
				err = s.lines.ask(time.Until(until), releaseKind, name, fmt.Sprint(holder.Token)).err
			}
			if err == nil && (holder == nil || !w.counts) {
				break
			}
			time.Sleep(giveBackWithin / 30)
		}
		if !tries {
			s.doubt(w.stakes[i].key, time.Now().Add(w.ttl))
		}
	}
}

func parse(token string) (int64, error) { return strconv.ParseInt(token, 10, 64) }
