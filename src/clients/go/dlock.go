// Package dlock has leases of dlock for Go, over database/sql, with any driver.
//
//	err := dlock.Do(ctx, db, "nightly-report", time.Minute,
//		func(ctx context.Context, l *dlock.Lease) error {
//			return l.Tx(ctx, db, func(tx *sql.Tx) error { ... })
//		})
//
// The lease is renewed every two seconds until the work has returned, also if its context has
// been cancelled by the caller.  If it is lost, or could not be renewed until
// five seconds before its end, the context that the work has is cancelled.  (With a ttl
// below 30 seconds, a sixth of it instead of five seconds; below 12, also instead of
// two.)
//
// Each request takes a connection of the pool for a moment, and waiting for a lock takes
// one for as long as it lasts.  A pool that has none free makes renewals fail, which the
// error says.  Where the work may take all connections, give the leases a pool of their
// own.
//
// Deadlines are counted from before a request is sent, on Go's monotonic clock.  It stands
// still while the machine is suspended; the token is for that.
package dlock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"
)

// Kinds of errors, for errors.Is().  What else the server complains of comes as the
// driver's own error.
var (
	ErrRefused     = errors.New("dlock: refused")     // somebody else holds the lock
	ErrLost        = errors.New("dlock: lost")        // the server says that the lease is not held any more
	ErrUnreachable = errors.New("dlock: unreachable") // the server could not be asked in time
)

// How often to renew, which is how a loss is learned of, and how long before its end a
// lease is given up that was not renewed; both a sixth of the ttl if that is less.
const (
	renewEvery = 2 * time.Second
	margin     = 5 * time.Second
)

// How long a request, its connection included, may take; and what tidies up.
const (
	answerWithin = 10 * time.Second
	undoWithin   = 3 * time.Second
)

const forever = time.Duration(math.MaxInt64)

// Names are UTF-8 in whatever encoding the database has, and drivers differ; so they are passed
// as bytes.
const (
	acquireSQL = `SELECT dlock_acquire(name => convert_from($1, 'UTF8'), owner => convert_from($2, 'UTF8'), ttl => $3::interval, wait => $4::interval,
 mode => $5, permits => $6::integer, reentry => 'return', lock_delay => $7::interval,
 min_hold => $8::interval, payload => convert_from($9, 'UTF8')::jsonb)`
	renewSQL        = `SELECT dlock_renew_token(convert_from($1, 'UTF8'), $2)`
	releaseSQL      = `SELECT dlock_release_token(convert_from($1, 'UTF8'), $2)`

	// By the owner, which no other request has.  A process id that was asked for before may be
	// at work for somebody else, if there is a pooler.
	cancelSQL = `SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters WHERE owner = convert_from($1, 'UTF8')`

	// A wait under way ends first: NULL, to be asked again.
	undoSQL = `SELECT CASE WHEN (` + cancelSQL + `) = 0
 THEN dlock_release(convert_from($2, 'UTF8'), convert_from($1, 'UTF8')) END`

	// Add a pair to the setting, for this transaction.
	presentSQL = `SELECT set_config('dlock.tokens', CASE WHEN position(p || ',' IN t || ',') > 0 THEN t
 WHEN t = '' THEN p ELSE t || ',' || p END, true)
 FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t, convert_from($1, 'UTF8') AS p) AS now`
)

// An error of one of the kinds, and what it came from.
type leaseError struct {
	kind  error
	text  string
	cause error
}

func (e *leaseError) Error() string        { return e.text }
func (e *leaseError) Is(target error) bool { return target == e.kind }
func (e *leaseError) Unwrap() error        { return e.cause }

// Why a lease has ended, and what the work failed with.
type bothErrors struct{ ended, work error }

func (e *bothErrors) Error() string        { return fmt.Sprintf("%v; the work failed: %v", e.ended, e.work) }
func (e *bothErrors) Is(target error) bool { return errors.Is(e.work, target) }
func (e *bothErrors) As(target any) bool   { return errors.As(e.work, target) }
func (e *bothErrors) Unwrap() error        { return e.ended }

// An Option of Do.
type Option func(*options)

type options struct {
	wait      time.Duration
	who       string
	mode      string
	permits   any
	lockDelay time.Duration
	minHold   time.Duration
	payload   any
	onLost    func(*Lease)
}

// Wait so long for the lock; by default not at all.
func Wait(limit time.Duration) Option { return func(o *options) { o.wait = limit } }

// WaitForever waits for the lock until the context is cancelled.
func WaitForever() Option { return Wait(forever) }

// Owner is what to call the holder in dlock_leases; a random part is added.
func Owner(name string) Option { return func(o *options) { o.who = name } }

// Mode of the lock, as of dlock_acquire(); by default exclusive.
func Mode(mode string) Option { return func(o *options) { o.mode = mode } }

// Permits makes the lock a semaphore of so many holders.
func Permits(count int) Option { return func(o *options) { o.permits = int64(count) } }

// LockDelay is how long the lock stays closed after the lease was lost.
func LockDelay(span time.Duration) Option { return func(o *options) { o.lockDelay = span } }

// MinHold is how long after the grant a release takes effect, at the earliest.
func MinHold(span time.Duration) Option { return func(o *options) { o.minHold = span } }

// Payload is anything that json.Marshal() takes; nil is none.
func Payload(value any) Option { return func(o *options) { o.payload = value } }

// OnLost is called, by another goroutine, when the work is to end.
func OnLost(call func(*Lease)) Option { return func(o *options) { o.onLost = call } }

// A Lease that is held.
type Lease struct {
	Name  string
	Owner string
	Token int64 // the fencing token

	db         *sql.DB
	ttl        time.Duration
	renewEvery time.Duration
	margin     time.Duration
	options    options

	ctx    context.Context // of the work
	cancel context.CancelFunc
	kept   context.Context // of the renewals, which go on until the work has returned
	unkeep context.CancelFunc
	ended  chan struct{} // closed when the renewals have ended
	told   sync.WaitGroup

	mu        sync.Mutex
	deadline  time.Time
	stopper   *time.Timer
	trouble   error
	err       error // why there is no lease any more
	finishing bool
}

// Do runs work under a lease, and releases that when the work has ended.  The error is
// that of the work, one of the three kinds, that of the context, or the driver's.  Work
// that fails after a loss gives both errors: errors.Is and errors.As find either.
func Do(ctx context.Context, db *sql.DB, name string, ttl time.Duration,
	work func(context.Context, *Lease) error, opts ...Option) error {
	l := &Lease{Name: name, db: db, ttl: ttl, ended: make(chan struct{})}
	l.options = options{mode: "exclusive"}
	for _, set := range opts {
		set(&l.options)
	}
	l.renewEvery = shorter(ttl/6, renewEvery)
	l.margin = shorter(ttl/6, margin)
	l.Owner = owner(l.options.who)
	if err := l.acquire(ctx); err != nil {
		return err
	}
	return l.run(ctx, work)
}

// Lost tells whether the work is to end.
func (l *Lease) Lost() bool { return l.Err() != nil }

// Err is why the work is to end, or nil.  The lease is over when the work has returned.
func (l *Lease) Err() error { return l.stop(nil) }

// Remaining is how long the lease lasts, at least, if no renewal succeeds; the work ends
// earlier.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := time.Until(l.deadline)
	if left < 0 {
		return 0
	}
	return left
}

// A Beginner is a *sql.DB or a *sql.Conn.
type Beginner interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

// Tx runs work in a transaction that presents the token.  It is rolled back if the work
// fails, or the lease ends.
func (l *Lease) Tx(ctx context.Context, db Beginner, work func(*sql.Tx) error) error {
	if err := l.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.ctx.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return l.instead(err)
	}
	defer tx.Rollback()
	pair := fmt.Sprintf(`"%s"=%d`, strings.ReplaceAll(l.Name, `"`, `""`), l.Token)
	if _, err = tx.ExecContext(ctx, presentSQL, []byte(pair)); err != nil {
		return l.instead(err)
	}
	if err = work(tx); err != nil {
		return l.instead(err)
	}
	if err = l.Err(); err != nil {
		return err
	}
	return l.instead(tx.Commit())
}

// The error, or why the lease has ended, if that is what it comes from.
func (l *Lease) instead(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended := l.over(); err != nil && ended != nil {
		return ended
	}
	return err
}

// Why there is no lease to work under, or nil.
func (l *Lease) over() error {
	if l.err == nil && l.finishing {
		return &leaseError{ErrLost, fmt.Sprintf("dlock: the work under the lease on %q has ended", l.Name), nil}
	}
	return l.err
}

// ---- before the work ----

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// An owner of its own for each lease.
func owner(who string) string {
	var random [6]byte
	if who == "" {
		host, _ := os.Hostname()
		who = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if len(who) > 200 {
		who = strings.ToValidUTF8(who[:200], "")
	}
	_, _ = rand.Read(random[:])
	return who + "/" + hex.EncodeToString(random[:])
}

func interval(span time.Duration) string {
	return fmt.Sprintf("%d microseconds", span.Microseconds())
}

// An error that came before there was a connection to send anything over.
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }

// The SQLSTATE, or nothing if it is no error of the server's.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

func isBroken(err error) bool {
	code := sqlState(err)
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}

// Is this an error that says nothing about the lease?  A standby can do nothing.
func isOutage(err error) bool { return isBroken(err) || sqlState(err) == "25006" }

// Is this no answer to a request, which may have been done all the same?
func isUnheard(err error) bool { return isBroken(err) && !errors.As(err, &unsent{}) }

// An error of the server, or of the way to it.
func (l *Lease) explain(err error) error {
	if !isOutage(err) {
		return err
	}
	text := err.Error()
	if stats := l.db.Stats(); errors.Is(err, context.DeadlineExceeded) {
		text = "the server does not answer"
		if stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections {
			text = fmt.Sprintf("none of the %d connections of the pool was free", stats.MaxOpenConnections)
		}
	}
	return &leaseError{ErrUnreachable, "dlock: " + text, err}
}

type answer[T any] struct {
	value T
	err   error
}

// The answer to a request, which must not take longer.  A driver may not come back from
// a server that does not answer: then it is left to itself.
func ask[T any](l *Lease, within time.Duration, query string, args ...any) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	answered := make(chan answer[T], 1)
	go func() {
		var a answer[T]
		a.err = l.request(ctx, &a.value, query, args)
		cancel()
		answered <- a
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-time.After(within + 100*time.Millisecond):
		var none T
		return none, context.DeadlineExceeded
	}
}

// A request for the lease that is under way.
type request struct {
	cancel   context.CancelFunc
	answered chan error
	token    sql.NullInt64
}

// One request.  Where a connection breaks, database/sql may repeat it, and nobody knows; so
// the release, whose second answer means nothing, has a connection of its own.
func (l *Lease) request(ctx context.Context, value any, query string, args []any) error {
	if query != releaseSQL {
		return l.db.QueryRowContext(ctx, query, args...).Scan(value)
	}
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return unsent{err}
	}
	defer conn.Close()
	return conn.QueryRowContext(ctx, query, args...).Scan(value)
}

// A connection for the request.  A driver may not come back from a server that is silent: then
// it is left to itself.
func (l *Lease) connect(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	answered := make(chan answer[*sql.Conn])
	go func() {
		conn, err := l.db.Conn(ctx)
		select {
		case answered <- answer[*sql.Conn]{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
			}
		}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ask for the lease.
func (l *Lease) send(ctx context.Context, args []any) (*request, error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	r := &request{answered: make(chan error, 1)}
	var own context.Context
	own, r.cancel = context.WithCancel(context.Background())
	go func() {
		err := conn.QueryRowContext(own, acquireSQL, args...).Scan(&r.token)
		r.answered <- err
		conn.Close()
		r.cancel()
	}()
	return r, nil
}

func (l *Lease) acquire(ctx context.Context) error {
	var payload any
	if l.options.payload != nil {
		text, err := json.Marshal(l.options.payload)
		if err != nil {
			return err
		}
		payload = text
	}
	var wait any // null: without a limit
	if l.options.wait != forever {
		wait = interval(l.options.wait)
	}
	limit := make(<-chan time.Time)
	if l.options.wait < forever-answerWithin {
		limit = time.After(l.options.wait + answerWithin)
	}
	sent := time.Now()
	r, err := l.send(ctx, []any{[]byte(l.Name), []byte(l.Owner), interval(l.ttl), wait, l.options.mode,
		l.options.permits, interval(l.options.lockDelay), interval(l.options.minHold), payload})
	if err == nil {
		select {
		case err = <-r.answered:
			if err != nil && isUnheard(err) {
				l.undo()
			}
		case <-ctx.Done():
			l.giveUp(r)
			return ctx.Err()
		case <-limit:
			l.giveUp(r)
			return l.explain(context.DeadlineExceeded)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return l.explain(err)
	}
	if !r.token.Valid {
		return &leaseError{ErrRefused, fmt.Sprintf("dlock: lock %q was not acquired", l.Name), nil}
	}
	l.Token = r.token.Int64
	return l.begin(sent)
}

// A grant that was waited for may be old; a renewal tells when it was held.
func (l *Lease) begin(sent time.Time) error {
	if time.Since(sent) > l.renewEvery/2 {
		sent = time.Now()
		held, err := ask[bool](l, l.margin, renewSQL, []byte(l.Name), l.Token)
		if err != nil {
			_, _ = l.giveBack(l.Token)
			return l.explain(err)
		}
		if !held {
			return &leaseError{ErrLost, fmt.Sprintf("dlock: the lease on %q was lost at once", l.Name), nil}
		}
	}
	l.deadline = sent.Add(l.ttl)
	return nil
}

// Cancel a request, and give back what it was granted all the same.
func (l *Lease) giveUp(r *request) {
waiting:
	for end := time.Now().Add(undoWithin); time.Now().Before(end); {
		// It may not have begun to wait, and then a cancel is in vain.
		_, _ = ask[int64](l, time.Until(end), cancelSQL, []byte(l.Owner))
		select {
		case err := <-r.answered:
			if err == nil && r.token.Valid {
				_, _ = l.giveBack(r.token.Int64)
			}
			if err == nil || !isOutage(err) {
				return
			}
			break waiting
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.cancel()
	l.undo()
}

// There was no answer to the request: leave behind neither a lease nor a wait for one.
func (l *Lease) undo() {
	for end := time.Now().Add(undoWithin); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		done, err := ask[sql.NullBool](l, time.Until(end), undoSQL, []byte(l.Owner), []byte(l.Name))
		if err == nil && done.Valid {
			return
		}
	}
}

// ---- during the work ----

func (l *Lease) run(ctx context.Context, work func(context.Context, *Lease) error) (err error) {
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.kept, l.unkeep = context.WithCancel(context.Background())
	l.mu.Lock()
	l.stopper = time.AfterFunc(time.Until(l.deadline.Add(-l.margin)), func() { l.stop(nil) })
	l.mu.Unlock()
	go l.keep()
	defer func() {
		if ended := l.finish(err); ended != nil {
			err = ended
		}
	}()
	return work(l.ctx, l)
}

// Renew until the work has ended, or there is nothing to be kept.
func (l *Lease) keep() {
	defer close(l.ended)
	timer := time.NewTimer(time.Until(l.deadline.Add(l.renewEvery - l.ttl)))
	defer timer.Stop()
	for {
		select {
		case <-l.kept.Done():
			return
		case <-timer.C:
		}
		sent := time.Now()
		held, err := ask[bool](l, l.margin, renewSQL, []byte(l.Name), l.Token)
		switch {
		case err != nil:
			l.mu.Lock()
			l.trouble = l.explain(err)
			l.mu.Unlock()
			timer.Reset(l.renewEvery / 4)
		case !held:
			l.stop(&leaseError{ErrLost, fmt.Sprintf("dlock: the lease on %q is lost", l.Name), nil})
			return
		default:
			l.mu.Lock()
			l.deadline = sent.Add(l.ttl)
			l.trouble = nil
			l.stopper.Reset(time.Until(l.deadline.Add(-l.margin)))
			l.mu.Unlock()
			timer.Reset(time.Until(sent.Add(l.renewEvery)))
		}
	}
}

// Stop the work, once, for this reason or since its time is up.  Returns the reason that
// counts, if there is one.
func (l *Lease) stop(reason error) error {
	l.mu.Lock()
	if l.err != nil || l.finishing {
		defer l.mu.Unlock()
		return l.over()
	}
	if reason == nil && time.Now().Before(l.deadline.Add(-l.margin)) {
		// It was renewed just now.
		l.mu.Unlock()
		return nil
	}
	if reason == nil {
		text := "this process did not get to run"
		if l.trouble != nil {
			text = strings.TrimPrefix(l.trouble.Error(), "dlock: ")
		}
		reason = &leaseError{ErrUnreachable,
			fmt.Sprintf("dlock: the lease on %q could not be renewed in time: %s", l.Name, text), l.trouble}
	}
	l.err = reason
	if l.options.onLost != nil {
		l.told.Add(1)
	}
	l.mu.Unlock()
	l.unkeep()
	l.cancel()
	if l.options.onLost != nil {
		// The work may have asked, and keep what this waits for.
		go func() {
			defer l.told.Done()
			l.options.onLost(l)
		}()
	}
	return reason
}

// ---- after the work ----

// Release a lease: was it held?  The error is for a server that does not say.  A request
// that was sent, and not answered, may have released it.
func (l *Lease) giveBack(token int64) (held bool, err error) {
	var doubt error
	for end := time.Now().Add(undoWithin); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		held, err = ask[bool](l, time.Until(end), releaseSQL, []byte(l.Name), token)
		if held {
			return true, nil
		}
		if err == nil {
			return false, doubt
		}
		if isUnheard(err) {
			doubt = err
		}
	}
	return false, err
}

// The work has ended, with this error or none.  Returns why the lease had ended before.
func (l *Lease) finish(failure error) error {
	l.mu.Lock()
	l.finishing = true
	l.stopper.Stop()
	l.mu.Unlock()
	l.unkeep()
	l.cancel()
	<-l.ended
	l.told.Wait()
	held, err := l.giveBack(l.Token)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !held && (err == nil || !time.Now().Before(l.deadline)) {
		text := fmt.Sprintf("dlock: the lease on %q was lost before the work had ended", l.Name)
		l.err = &leaseError{ErrLost, text, failure}
		return l.err
	}
	// Unless that says no more than that the work was stopped.
	if l.err != nil && failure != nil && !errors.Is(failure, l.err) && !errors.Is(failure, context.Canceled) {
		return &bothErrors{l.err, failure}
	}
	return l.err
}
