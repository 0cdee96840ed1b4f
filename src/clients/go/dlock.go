// Package dlock has leases of dlock: locks in PostgreSQL that expire, with fencing tokens.
//
//	session, err := dlock.Open("pgx", dsn)
//	err = session.Lease(ctx, "nightly-report", func(ctx context.Context, lease *dlock.Lease) error {
//		return lease.Tx(ctx, db, func(ctx context.Context, tx *sql.Tx) error { ... })
//	}, dlock.Wait(5*time.Second))
//
// A Session is a program's dealings with one server.  All of its leases share its connections, of which there are
// up to two, one more while something waits, and one for each worker.  What tasks ask for at the
// same time goes in one statement.
//
// The owner of a lease is "client#task".  A task goes with the context: a lease that the work asks for with the context
// that it was given has the same owner.  Work that runs beside other work inside of one lease wants a task of its
// own, see WithTask.
//
// Deadlines are counted from before a request is sent, on Go's monotonic clock.  It stands still while the
// machine is suspended; the token is for that.
package dlock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Logger is told what goes wrong in the background, such as renewals; *slog.Logger is one.
type Logger interface {
	Warn(message string, args ...any)
}

type standardLogger struct{}

func (standardLogger) Warn(message string, args ...any) {
	log.Println(append([]any{message}, args...)...)
}

// A SessionOption is of Open, Connect or ConnectTo.
type SessionOption func(*Session)

// Client names the client of the owners "client#task".  Each session has one of its own.
func Client(name string) SessionOption { return func(s *Session) { s.client = name } }

// Log says who is told of trouble in the background, instead of the standard logger.
func Log(logger Logger) SessionOption { return func(s *Session) { s.logger = logger } }

// A Session has leases of one server.
type Session struct {
	client string
	logger Logger
	source Source
	lines  *lines
	over   chan struct{} // closed by Close, with the mutex held

	mu        sync.Mutex
	busy      int                  // what Close waits for
	idle      *sync.Cond           // nothing is busy
	holds     map[*hold]bool       // to be renewed
	stakes    map[string]*stake    // by owner and name
	doubts    map[string]time.Time // until when an owner may hold what it has not heard of, by the key of its stake
	newest    int64                // the largest token that a lease has had
	waiting   int                  // how many requests may have a place
	taker     *lines               // the connection that takes turns
	relyFor   time.Duration        // how long requests rely on their places
	timer     *time.Timer          // for the next renewal or deadline
	timerAt   time.Time
	inTrouble bool // do renewals fail?
}

// A pool has one session.
var (
	sessionsMu sync.Mutex
	sessions   = map[any]*Session{}
)

// Open makes a session with connections of its own, by a driver's name and its data source, as sql.Open has
// them.
func Open(driver, dataSource string, options ...SessionOption) (*Session, error) {
	db, err := sql.Open(driver, dataSource)
	if err != nil {
		return nil, err
	}
	return ConnectTo(db, &sqlSource{db, true}, options...), nil
}

// Connect returns the session of a pool, whose connections come from there: work that uses up the pool
// can keep leases from being renewed.  Options count for the first call.
func Connect(db *sql.DB, options ...SessionOption) *Session {
	return ConnectTo(db, &sqlSource{db, false}, options...)
}

// ConnectTo returns the session of a pool, or of another key, with connections from a source.  Options count for the
// first call.
func ConnectTo(key any, source Source, options ...SessionOption) *Session {
	sessionsMu.Lock()
	defer sessionsMu.Unlock()
	if s := sessions[key]; s != nil && s.gaveUp(context.Background()) == nil {
		return s
	}
	s := &Session{
		client: newClient(), logger: standardLogger{}, source: source,
		lines: newLines(source, 2), over: make(chan struct{}),
		holds: map[*hold]bool{}, stakes: map[string]*stake{}, doubts: map[string]time.Time{}, relyFor: relyFor,
	}
	s.idle = sync.NewCond(&s.mu)
	for _, set := range options {
		set(s)
	}
	sessions[key] = s
	return s
}

func newClient() string {
	var random [6]byte
	_, _ = rand.Read(random[:])
	host, _ := os.Hostname()
	return fmt.Sprintf("%.50s/%d/%s", host, os.Getpid(), hex.EncodeToString(random[:]))
}

// ShardOf returns that of several servers which has the locks of this name, by CRC-32.  Name them in one order everywhere.
func ShardOf[S any](name string, shards []S) S {
	return shards[crc32.ChecksumIEEE([]byte(name))%uint32(len(shards))]
}

// Lease runs work under a lease, and releases that when the work has ended.  The error is that of the work, one of the
// kinds, that of the context, or the driver's.  Work that fails after a loss gives both errors: errors.Is and errors.As find
// either.
func (s *Session) Lease(ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option) error {
	lease, err := s.Acquire(ctx, name, options...)
	if err != nil {
		return err
	}
	return lease.Run(ctx, work)
}

// Acquire returns a lease, to be released by the caller.
func (s *Session) Acquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return s.acquire(ctx, single, []string{name}, options)
}

// AcquireAll acquires all of the locks, or none.
func (s *Session) AcquireAll(ctx context.Context, names []string, options ...Option) (*Lease, error) {
	return s.acquire(ctx, several, append([]string(nil), names...), options) // the caller's may change while it is undone
}

// AcquirePath acquires a place in a hierarchy, such as "a/b/c".
func (s *Session) AcquirePath(ctx context.Context, path string, options ...Option) (*Lease, error) {
	return s.acquire(ctx, hierarchy, []string{path}, options)
}

// AcquirePermit acquires one of so many permits.
func (s *Session) AcquirePermit(ctx context.Context, name string, permits int, options ...Option) (*Lease, error) {
	return s.acquire(ctx, single, []string{name}, append(options[:len(options):len(options)], func(o *optionSet) { o.permits = fmt.Sprint(permits) }))
}

var onceKind = &kind{rank: 1, text: "SELECT @dlock_once($1, $2::interval)::text"}

// Once returns a token, if this is the first call in this time slot; or 0.
func (s *Session) Once(ctx context.Context, name string, every time.Duration) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.end()
	a := s.ask(ctx, onceKind, name, interval(every))
	if a.err != nil || a.rows[0][0] == nil {
		return 0, a.err
	}
	return parse(*a.rows[0][0])
}

// Present presents the tokens of leases in a transaction that somebody else has begun.  Check the leases
// before the commit.
func (s *Session) Present(ctx context.Context, tx Execer, leases ...*Lease) error {
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, presentSQL(leases))
	return Explain(err)
}

// Close ends waits, gives back all, and closes the connections.  Elections, watches and workers come to their ends first, so
// none of their functions may call it.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.gaveUp(context.Background()) != nil {
		s.mu.Unlock()
		return nil
	}
	close(s.over)
	s.rest()
	var releases sync.WaitGroup
	for h := range s.holds {
		if release := h.release; release != nil {
			h.stop(ErrClosed)
			releases.Add(1)
			go func() {
				defer releases.Done()
				_ = release()
			}()
		}
	}
	s.mu.Unlock()
	releases.Wait()
	s.mu.Lock()
	s.rest()
	s.mu.Unlock()
	s.lines.close()
	if source, ok := s.source.(interface{ close() }); ok {
		source.close()
	}
	sessionsMu.Lock()
	defer sessionsMu.Unlock()
	for key, other := range sessions {
		if other == s {
			delete(sessions, key)
		}
	}
	return nil
}

// Wait for what is under way; the mutex is held.
func (s *Session) rest() {
	for s.busy > 0 {
		s.idle.Wait()
	}
}

// Client is the first part of the owners "client#task".
func (s *Session) Client() string { return s.client }

// Begin something that Close waits for.
func (s *Session) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == "" || strings.Contains(s.client, "#") {
		return errors.New("dlock: a client must be a text without #")
	}
	err := s.gaveUp(ctx)
	if err == nil {
		s.busy++
	}
	return err
}

// It has ended.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended()
}

// The same; the mutex is held.
func (s *Session) ended() {
	if s.busy--; s.busy == 0 {
		s.idle.Broadcast()
	}
}

// Why the caller does not wait any more, or nil.
func (s *Session) gaveUp(ctx context.Context) error {
	select {
	case <-s.over:
		return ErrClosed
	default:
		return ctx.Err()
	}
}

// A context that ends with the session, too.
func (s *Session) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Wait for an answer.  If the caller gives up, and the request is on its way, that is returned: its answer will come.
func (s *Session) wait(ctx context.Context, r *request) (answer, *request) {
	select {
	case a := <-r.done:
		return a, nil
	case <-ctx.Done():
	case <-s.over:
	}
	why := s.gaveUp(ctx)
	if s.lines.withdraw(r, why) {
		r = nil
	}
	return answer{err: why}, r
}

// Ask for something that may be left behind.
func (s *Session) ask(ctx context.Context, k *kind, row ...any) answer {
	a, _ := s.wait(ctx, s.lines.start(answerWithin, k, row...))
	return a
}

// The task of a context, and how many tasks there have been.
type taskKey struct{}

var tasks atomic.Int64

// Programs number tasks, too: theirs are not to be the same.
func newTask() string { return fmt.Sprint("~", tasks.Add(1)) }

// WithTask makes what is asked for with the context part of a task: an owner of leases, and not the one around it.
// Without a name it is a new one, whose name begins with "~".
func WithTask(ctx context.Context, name string) context.Context {
	if name == "" {
		name = newTask()
	}
	return context.WithValue(ctx, taskKey{}, name)
}

func interval(span time.Duration) string {
	return strconv.FormatInt(span.Microseconds(), 10) + " microseconds"
}

// Sleep, unless the caller gives up, or is woken.
func (s *Session) nap(ctx context.Context, span time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.over:
	case <-wake:
	case <-timer.C:
	}
}
