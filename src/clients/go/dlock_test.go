package dlock_test

// What sessions do whatever the server says, with a driver that is not one: each statement is
// answered when the test says so.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/dlock"
)

type stateError string

func (e stateError) Error() string    { return "state " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// A server whose statements are answered by the test.
type server struct {
	t       *testing.T
	asked   chan *statement
	turns   chan string // answers to dlock_take()
	clients atomic.Int32
	closed  atomic.Int32 // of them
	pid     atomic.Value // of its process
}

type statement struct {
	what   string
	args   []any
	answer chan any // a text, or an error
}

type conn struct{ s *server }

func (s *server) Connect(context.Context) (dlock.Conn, error) {
	s.clients.Add(1)
	return conn{s}, nil
}

func texts(values ...string) [][]*string {
	row := make([]*string, len(values))
	for i := range values {
		row[i] = &values[i]
	}
	return [][]*string{row}
}

func (c conn) Close() { c.s.closed.Add(1) }

func (c conn) Backend(pid string) { c.s.pid.Store(pid) }

func (c conn) Query(ctx context.Context, query string, args ...any) ([][]*string, error) {
	if strings.Contains(query, "pg_proc") {
		return texts(`s.`, "dlock_acquire_each dlock_renew_each dlock_release_each dlock_take", "1.0", "db", "17", "", ""), nil
	}
	if strings.Contains(query, "dlock_lease(") && !strings.Contains(args[1].(string), "#") {
		return texts("{1" + strings.Repeat(",1", strings.Count(args[0].(string), ",")) + "}"), nil // the holders have gone
	}
	if strings.Contains(query, "dlock_take(") {
		select {
		case turn := <-c.s.turns:
			if turn == "" {
				return nil, nil
			}
			return texts(strings.Split(turn, " ")...), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	statement := &statement{regexp.MustCompile(`dlock_([a-z_]+)`).FindStringSubmatch(query)[1], args, make(chan any, 1)}
	c.s.asked <- statement
	select {
	case a := <-statement.answer:
		if err, failed := a.(error); failed {
			return nil, err
		}
		return texts(strings.Split(a.(string), " ")...), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The next statement.  Renewals that the test does not wait for succeed.
func (s *server) any(waitsForRenewal bool) *statement {
	s.t.Helper()
	for {
		select {
		case statement := <-s.asked:
			if statement.what != "renew_each" || waitsForRenewal {
				return statement
			}
			statement.answer <- "{t" + strings.Repeat(",t", strings.Count(statement.args[0].(string), ",")) + "}"
		case <-time.After(time.Minute):
			s.t.Fatal("nothing is asked for")
		}
	}
}

// The next statement, which has to be this one.
func (s *server) next(what string, names ...string) *statement {
	s.t.Helper()
	statement := s.any(what == "renew_each")
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = fmt.Sprintf("%q", name)
	}
	if expected := "{" + strings.Join(quoted, ",") + "}"; statement.what != what || statement.args[0] != expected {
		s.t.Fatalf("%s %v instead of %s %s", statement.what, statement.args[0], what, expected)
	}
	return statement
}

// Release a lease.
func (s *server) release(lease *dlock.Lease) {
	s.t.Helper()
	released := make(chan error)
	go func() { released <- lease.Release() }()
	s.next("release_each", lease.Name).answer <- "{t}"
	expect(s.t, <-released, nil)
}

func (s *server) none() {
	s.t.Helper()
	select {
	case statement := <-s.asked:
		s.t.Errorf("asked for %s %v", statement.what, statement.args)
	case <-time.After(20 * time.Millisecond):
	}
}

// So many connections are closed.
func (s *server) closes(count int) {
	s.t.Helper()
	for until := time.Now().Add(time.Minute); int(s.closed.Load()) < count; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			s.t.Fatal(s.closed.Load(), "connections were closed instead of", count)
		}
	}
}

type told struct{ messages chan string }

func (t told) Warn(message string, args ...any) { t.messages <- fmt.Sprint(message, args) }

func start(t *testing.T) (*server, *dlock.Session, told) {
	s := &server{t: t, asked: make(chan *statement, 100), turns: make(chan string, 9)}
	logger := told{make(chan string, 100)}
	return s, dlock.ConnectTo(s, s, dlock.Log(logger)), logger
}

type result struct {
	lease *dlock.Lease
	err   error
}

// Do something beside the test, up to its request.
func (s *server) beside(session *dlock.Session, do func()) {
	before := session.Queued() + len(s.asked)
	go do()
	for session.Queued()+len(s.asked) <= before {
		time.Sleep(time.Millisecond)
	}
}

// Requests, in this order.
func acquire(s *server, session *dlock.Session, ctx context.Context, names []string, options ...dlock.Option) []chan result {
	var results []chan result
	for _, name := range names {
		c := make(chan result, 1)
		results = append(results, c)
		name := name
		s.beside(session, func() {
			lease, err := session.Acquire(ctx, name, options...)
			c <- result{lease, err}
		})
	}
	return results
}

// A lease that is held.
func held(s *server, session *dlock.Session, name string, options ...dlock.Option) *dlock.Lease {
	s.t.Helper()
	c := acquire(s, session, context.Background(), []string{name}, options...)
	s.next("acquire_each", name).answer <- "{7}"
	r := <-c[0]
	if r.err != nil {
		s.t.Fatal(r.err)
	}
	return r.lease
}

func expect(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%v instead of %v", err, kind)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	for _, option := range []dlock.Option{dlock.TTL(0), dlock.TTL(-1), dlock.Wait(-1), dlock.LockDelay(-1), dlock.Payload(func() {})} {
		if _, err := session.Acquire(context.Background(), "job", option); err == nil {
			t.Error("an option that is wrong")
		}
		if err := session.Elect(context.Background(), "job", nil, option); err == nil {
			t.Error("an option of an election that is wrong")
		}
	}
	if _, err := dlock.ConnectTo(t, s, dlock.Client("a#b")).Acquire(context.Background(), "job"); err == nil {
		t.Error("a client that is wrong")
	}
	s.none()
}

func TestCoalescing(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx := context.Background()
	c := acquire(s, session, ctx, []string{"a", "b", "c"})
	first := s.next("acquire_each", "a")
	c = append(c, acquire(s, session, ctx, []string{"d"}, dlock.TTL(2*time.Minute))...)
	s.none()
	if pid := s.pid.Load(); pid != "17" {
		t.Error("process", pid)
	}
	first.answer <- "{1}"
	s.next("acquire_each", "b", "c").answer <- "{2,3}"
	s.next("acquire_each", "d").answer <- "{4}"
	var leases []*dlock.Lease
	for i := range c {
		r := <-c[i]
		if r.err != nil || r.lease.Token != int64(i+1) {
			t.Fatal(i, r)
		}
		leases = append(leases, r.lease)
	}
	released := make(chan error, 4)
	for _, lease := range leases {
		lease := lease
		s.beside(session, func() { released <- lease.Release() })
	}
	s.next("release_each", "a").answer <- "{t}"
	s.next("release_each", "b", "c", "d").answer <- "{t,t,t}"
	for range leases {
		if err := <-released; err != nil {
			t.Fatal(err)
		}
	}
}

// At most 1000 in a statement.
func TestBatches(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	first := acquire(s, session, context.Background(), []string{"x"})
	statement := s.next("acquire_each", "x")
	refused := make(chan error, 2500)
	for i := 0; i < 2500; i++ {
		go func(i int) {
			_, err := session.Acquire(context.Background(), fmt.Sprint("n", i))
			refused <- err
		}(i)
	}
	for session.Queued() < 2500 {
		time.Sleep(time.Millisecond)
	}
	statement.answer <- "{1}"
	<-first[0]
	for left := 2500; left > 0; {
		statement := s.any(false)
		count := strings.Count(statement.args[0].(string), ",") + 1
		if count > 1000 {
			t.Fatal(count, "in a statement")
		}
		statement.answer <- "{NULL" + strings.Repeat(",NULL", count-1) + "}"
		left -= count
	}
	for i := 0; i < 2500; i++ {
		expect(t, <-refused, dlock.ErrRefused)
	}
}

// A slow grant holds up neither releases nor renewals.
func TestSlowGrant(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	lease := held(s, session, "job")
	slow := acquire(s, session, context.Background(), []string{"slow"})
	granting := s.next("acquire_each", "slow")
	s.next("renew_each", "job").answer <- "{t}"
	if count := s.clients.Load(); count > 3 {
		t.Error(count, "connections")
	}
	released := make(chan error)
	go func() { released <- lease.Release() }()
	s.next("release_each", "job").answer <- "{t}"
	if err := <-released; err != nil {
		t.Error(err)
	}
	granting.answer <- "{NULL}"
	expect(t, (<-slow[0]).err, dlock.ErrRefused)
}

// An error is traced to the request whose it is; what is everybody's is told to everybody.
func TestErrorOfOne(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	c := acquire(s, session, context.Background(), []string{"x", "a", "b", "", "c", "d"})
	s.next("acquire_each", "x").answer <- "{1}"
	s.next("acquire_each", "a", "b", "", "c", "d").answer <- stateError("22023")
	s.next("acquire_each", "a", "b").answer <- "{2,3}"
	s.next("acquire_each", "", "c", "d").answer <- stateError("22023")
	s.next("acquire_each", "").answer <- stateError("22023")
	s.next("acquire_each", "c", "d").answer <- "{4,5}"
	for i := range c {
		if r := <-c[i]; (i == 3) != errors.Is(r.err, stateError("22023")) || (i == 3) != (r.err != nil) {
			t.Error(i, r)
		}
	}
	c = acquire(s, session, context.Background(), []string{"e", "f", "g"})
	s.next("acquire_each", "e").answer <- stateError("42501")
	s.next("acquire_each", "f", "g").answer <- stateError("42501")
	for i := range c {
		expect(t, (<-c[i]).err, stateError("42501"))
	}

	// A pooler tells so that a connection has gone, whose statement may have succeeded.
	c = acquire(s, session, context.Background(), []string{"x", "h", "i"})
	s.next("acquire_each", "x").answer <- "{6}"
	s.next("acquire_each", "h", "i").answer <- stateError("08P01")
	for left := 2; left > 0; {
		again := s.any(false)
		if again.args[5] != "return" {
			t.Fatal(again.args)
		}
		more := strings.Count(again.args[0].(string), ",")
		left -= 1 + more
		again.answer <- "{7" + strings.Repeat(",7", more) + "}"
	}
	for i := range c {
		expect(t, (<-c[i]).err, nil)
	}
}

// An error with the field that drivers have for the server's function that has raised it.
type routineError struct {
	stateError
	Routine string
}

// A server that grants nothing is not another one, though that has the code of a changed plan.
func TestGrantsNothing(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	for i := 0; i < 2; i++ {
		c := acquire(s, session, context.Background(), []string{"a"})
		s.next("acquire_each", "a").answer <- routineError{"0A000", "dlock_sql_acquire_each"}
		expect(t, (<-c[0]).err, routineError{"0A000", "dlock_sql_acquire_each"})
	}
	if clients := s.clients.Load(); clients != 1 {
		t.Error(clients, "connections")
	}
}

// An extension that is elsewhere now, or a changed plan, is looked for again, and that is no error of one.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	session.IdleWithin(time.Hour)
	for i, code := range []error{stateError("42883"), stateError("3F000"), routineError{"0A000", "RevalidateCachedQuery"}} {
		c := acquire(s, session, context.Background(), []string{"x", "a", "b"})
		s.next("acquire_each", "x").answer <- "{NULL}"
		s.next("acquire_each", "a", "b").answer <- code
		expect(t, (<-c[0]).err, dlock.ErrRefused)
		expect(t, (<-c[1]).err, code)
		expect(t, (<-c[2]).err, code)
		s.closes(i + 1)
	}
}

// A connection that is idle is closed by the time that another one may take its place.
func TestIdle(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	session.IdleWithin(time.Millisecond)
	for i := 0; i < 20; i++ {
		c := acquire(s, session, context.Background(), []string{"a"})
		s.next("acquire_each", "a").answer <- "{NULL}"
		expect(t, (<-c[0]).err, dlock.ErrRefused)
		s.closes(int(s.clients.Load()))
	}
}

// A request that was refused with an error has no place to give up.
func TestErrorWithoutPlace(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	c := acquire(s, session, context.Background(), []string{"a"}, dlock.Wait(dlock.Forever))
	s.next("acquire_each", "a").answer <- stateError("22023")
	expect(t, (<-c[0]).err, stateError("22023"))
	s.none()
}

// What is cancelled is taken out, or released once it is granted.
func TestCancel(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx, cancel := context.WithCancel(context.Background())
	c := acquire(s, session, ctx, []string{"a", "b"})
	c = append(c, acquire(s, session, context.Background(), []string{"c"})...)
	granting := s.next("acquire_each", "a")
	cancel()
	expect(t, (<-c[0]).err, context.Canceled)
	expect(t, (<-c[1]).err, context.Canceled)
	for session.Queued() > 1 {
		time.Sleep(time.Millisecond)
	}
	granting.answer <- "{5}"
	both := map[string]*statement{}
	for i := 0; i < 2; i++ {
		next := s.any(false)
		both[next.what] = next
	}
	if both["release_each"] == nil || both["acquire_each"] == nil || !reflect.DeepEqual(both["release_each"].args[:2], []any{`{"a"}`, `{"5"}`}) ||
		both["acquire_each"].args[0] != `{"c"}` {
		t.Fatal(both)
	}
	both["release_each"].answer <- "{t}"
	both["acquire_each"].answer <- "{6}"
	if r := <-c[2]; r.err != nil {
		t.Error(r.err)
	}
	s.none()
}

// An answer that is lost: what was granted is asked for, or ended if nobody wants it any more.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx, cancel := context.WithCancel(context.Background())
	asked := func(reentry string) chan any {
		t.Helper()
		statement := s.next("acquire_each", "a")
		if statement.args[5] != reentry {
			t.Fatal(statement.args)
		}
		return statement.answer
	}
	c := acquire(s, session, ctx, []string{"a"})
	asked("deny") <- stateError("57P01")
	asked("return") <- "{2}"
	r := <-c[0]
	if r.err != nil || r.lease.Token != 2 {
		t.Fatal(r)
	}
	s.release(r.lease)
	c = acquire(s, session, ctx, []string{"a"})
	asked("deny") <- stateError("57P01")
	granting := asked("return")
	cancel()
	expect(t, (<-c[0]).err, context.Canceled)
	granting <- stateError("57P01")
	s.next("lease", "a").answer <- `{1} [{"token":2}]`
	s.next("release_each", "a").answer <- "{t}"

	// Two requests of a task: what one was granted is not for the other.
	c = acquire(s, session, dlock.WithTask(context.Background(), "one"), []string{"a", "a"})
	asked("deny") <- stateError("57P01")
	asked("deny") <- stateError("57P01")
	asked("deny") <- stateError("XX000")
	s.next("acquire_each", "a").answer <- stateError("XX000") // the other one has ended, perhaps before
	s.next("lease", "a").answer <- "{1} [null]"
	for i := range c {
		expect(t, (<-c[i]).err, stateError("XX000"))
	}
}

// A grant that is heard of too late is given back, though its caller gives up while the release is queued.
func TestLateGrant(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx, cancel := context.WithCancel(dlock.WithTask(context.Background(), "own"))
	outer := acquire(s, session, ctx, []string{"a"})
	s.next("acquire_each", "a").answer <- "{7}"
	expect(t, (<-outer[0]).err, nil)
	other := held(s, session, "other")
	inner := acquire(s, session, ctx, []string{"a"}, dlock.Reenter(), dlock.TTL(time.Microsecond))
	granting := s.next("acquire_each", "a")
	go other.Release()
	releasing := s.next("release_each", "other")
	acquire(s, session, context.Background(), []string{"b"})

	// Both lines are busy when it asks for the release.
	goOn := session.Pause()
	granting.answer <- "{7}"
	s.next("acquire_each", "b")
	goOn()
	for session.Queued() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	expect(t, (<-inner[0]).err, context.Canceled)
	releasing.answer <- "{t}"
	s.next("release_each", "a").answer <- "{t}"
}

// What is undone is what was asked for, whatever the caller does with its names.
func TestUndoOfNames(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx, giveUp := context.WithCancel(context.Background())
	names, done := []string{"a"}, make(chan error)
	go func() {
		_, err := session.AcquireAll(ctx, names)
		done <- err
	}()
	granting := s.next("acquire_all", "a")
	giveUp()
	expect(t, <-done, context.Canceled)
	names[0] = "b"
	granting.answer <- stateError("57P01")
	s.next("lease", "a").answer <- `{1} [{"token":2}]`
	s.next("release_each", "a").answer <- "{t}"
}

// What was granted unheard is found, and ended by its token; what its task asks for meanwhile waits for that, until it is given up.
func TestUndo(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	task := dlock.WithTask(context.Background(), "one")
	first, giveUp := context.WithCancel(task)
	doubted := acquire(s, session, first, []string{"a"})
	granting := s.next("acquire_each", "a")
	giveUp()
	expect(t, (<-doubted[0]).err, context.Canceled)

	given, giveUp := context.WithCancel(task)
	results := make(chan result, 2)
	for _, ctx := range []context.Context{given, task} {
		ctx := ctx
		go func() {
			lease, err := session.Acquire(ctx, "a", dlock.TTL(time.Hour))
			results <- result{lease, err}
		}()
	}
	s.none()
	granting.answer <- stateError("57P01")
	finding := s.next("lease", "a")
	s.none()
	giveUp()
	expect(t, (<-results).err, context.Canceled)
	finding.answer <- `{1} [{"token":2}]`
	ending := s.next("release_each", "a")
	if ending.args[1] != `{"2"}` {
		t.Error(ending.args)
	}
	s.none()
	ending.answer <- stateError("57P01")
	s.next("lease", "a").answer <- "{1} [null]"
	s.next("acquire_each", "a").answer <- "{3}"
	if r := <-results; r.err != nil || r.lease.Token != 3 {
		t.Fatal(r)
	}
	s.none()
}

// Two requests of a task that are given up: what it asks for then waits for both, and each undoes what it may have been granted.
func TestUndoOfTwo(t *testing.T) {
	t.Parallel()
	for _, doubt := range []bool{false, true} {
		s, session, _ := start(t)
		task := dlock.WithTask(context.Background(), "one")
		later, giveUpLater := context.WithCancel(task)
		c := acquire(s, session, later, []string{"a"}, dlock.Wait(dlock.Forever), dlock.TTL(time.Hour))
		s.next("acquire_each", "a").answer <- "{NULL}"
		ctx, giveUp := context.WithCancel(task)
		c = append(c, acquire(s, session, ctx, []string{"a"}, dlock.Wait(dlock.Forever))...)
		first := s.next("acquire_each", "a")
		giveUp()
		expect(t, (<-c[1]).err, context.Canceled)
		giveUpLater()
		expect(t, (<-c[0]).err, context.Canceled)
		for session.Queued() == 0 {
			time.Sleep(time.Millisecond)
		}
		result := make(chan error, 1)
		go func() {
			_, err := session.Acquire(task, "a")
			result <- err
		}()
		s.none()
		first.answer <- "{NULL}"
		second := s.next("acquire_each", "a") // and last
		if second.args[2] != "3600000000 microseconds" {
			t.Fatal(second.args)
		}
		if doubt {
			second.answer <- stateError("57P01")
			both := map[string]*statement{}
			for i := 0; i < 2; i++ {
				next := s.any(false)
				both[next.what] = next
			}
			if both["lease"] == nil || both["acquire_each"] == nil {
				t.Fatal(both)
			}
			both["lease"].answer <- "{1} [null]"
			s.none()
			both["acquire_each"].answer <- "{NULL}"
		} else {
			second.answer <- "{NULL}"
			first = s.next("acquire_each", "a")
			s.none()
			first.answer <- stateError("57P01")
			s.next("lease", "a").answer <- `{1} [{"token":2}]`
			s.next("release_each", "a").answer <- "{t}"
		}
		s.next("acquire_each", "a").answer <- "{3}"
		expect(t, <-result, nil)
	}
}

// What ends the place of a task has its other requests ask for one.
func TestSharedPlace(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	asked := func(keep string) chan any {
		t.Helper()
		statement := s.next("acquire_each", "a")
		if statement.args[8] != keep+" microseconds" {
			t.Fatal(statement.args)
		}
		return statement.answer
	}
	task := dlock.WithTask(context.Background(), "one")
	waits := acquire(s, session, task, []string{"a"}, dlock.Wait(dlock.Forever))
	asked("10000000") <- "{NULL}"
	for _, limit := range []time.Duration{0, 10 * time.Millisecond, dlock.Forever} {
		ctx, giveUp := context.WithCancel(task)
		other := acquire(s, session, ctx, []string{"a"}, dlock.Wait(limit))
		if limit > 0 {
			asked("10000000") <- "{NULL}"
		}
		if limit == dlock.Forever {
			giveUp()
		}
		asked("0") <- "{NULL}"
		<-other[0]
		asked("10000000") <- "{NULL}"
		giveUp()
	}
	s.none()
	if count := s.clients.Load(); count > 3 {
		t.Error(count, "connections: it has asked as no turn came")
	}
	go session.Close()
	expect(t, (<-waits[0]).err, dlock.ErrClosed)
	asked("0") <- "{NULL}"
}

// A place that has gone unseen, and takes that succeed: the request asks again.
func TestUnseenEnd(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	session.RelyFor(0)
	c := acquire(s, session, context.Background(), []string{"a"}, dlock.Wait(dlock.Forever))
	s.next("acquire_each", "a").answer <- "{NULL}"
	s.turns <- ""
	s.next("acquire_each", "a").answer <- "{7}"
	if count := s.clients.Load(); count > 2 {
		t.Error(count, "connections: it has asked as no turn came")
	}
	r := <-c[0]
	expect(t, r.err, nil)
	s.release(r.lease)
}

// A request for "a" that waits, and has a turn whose token is not above one that was heard of before it began: so it asks whether it
// has that.
func turn(s *server, session *dlock.Session, ctx context.Context, between func(), options ...dlock.Option) (chan result, *statement) {
	s.t.Helper()
	s.release(held(s, session, "x"))
	c := acquire(s, session, ctx, []string{"a"}, append(options, dlock.Wait(dlock.Forever))...)
	asked := s.next("acquire_each", "a")
	asked.answer <- "{NULL}"
	between()
	s.turns <- "a " + strings.Trim(asked.args[1].(string), `{"}`) + " 7"
	return c[0], s.next("renew_each", "a")
}

// A turn that was that of a request before is none, nor is one that has ended: the request asks again.
func TestTurnOver(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	c, confirming := turn(s, session, context.Background(), func() {})
	confirming.answer <- "{f}"
	s.next("acquire_each", "a").answer <- "{9}"
	r := <-c
	if r.err != nil || r.lease.Token != 9 {
		t.Fatal(r)
	}
	s.release(r.lease)
}

// A turn that has come as the session is closed is given back before it has closed, and again if that is not heard.
func TestTurnAtClose(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	c, confirming := turn(s, session, context.Background(), func() {})
	closed := make(chan error, 1)
	go func() { closed <- session.Close() }()
	expect(t, (<-c).err, dlock.ErrClosed)
	confirming.answer <- "{t}"
	s.next("release_each", "a").answer <- stateError("57P01")
	again := s.next("release_each", "a")
	if len(closed) > 0 {
		t.Error("it has closed before")
	}
	again.answer <- "{t}"
	expect(t, <-closed, nil)
}

// A turn that is given up is released, though another request of its task has entered that lease.
func TestTurnEntered(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	task := dlock.WithTask(context.Background(), "one")
	first, giveUp := context.WithCancel(task)
	var other chan result
	var entering *statement
	c, confirming := turn(s, session, first, func() {
		other = acquire(s, session, task, []string{"a"}, dlock.Reenter())[0]
		entering = s.next("acquire_each", "a")
	}, dlock.Reenter())
	entering.answer <- "{7}"
	entered := <-other
	expect(t, entered.err, nil)
	giveUp()
	expect(t, (<-c).err, context.Canceled)
	confirming.answer <- "{t}"
	s.next("release_each", "a").answer <- "{t}"
	s.release(entered.lease)
	s.none()
}

// What a task may hold unheard refuses none of its requests: the next one asks for that, or the last one ends it.
func TestUnheard(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	task := dlock.WithTask(context.Background(), "one")
	asked := func(reentry string) chan any {
		t.Helper()
		statement := s.next("acquire_each", "a")
		if statement.args[5] != reentry {
			t.Fatal(statement.args)
		}
		return statement.answer
	}
	c := acquire(s, session, task, []string{"a"}, dlock.TTL(time.Hour))
	asked("deny") <- "{7}"
	lease := (<-c[0]).lease
	lease.Outlive()
	released := make(chan error)
	go func() { released <- lease.Release() }()
	for over := false; !over; {
		select {
		case statement := <-s.asked:
			statement.answer <- stateError("57P01")
		case err := <-released:
			expect(t, err, dlock.ErrUnreachable)
			over = true
		}
	}
	c = acquire(s, session, task, []string{"a"}, dlock.TTL(time.Hour))
	asked("count") <- "{7}"
	lease = (<-c[0]).lease
	go func() { released <- lease.Release() }()
	s.next("release_each", "a").answer <- "{t}"
	s.next("release_each", "a").answer <- "{f}" // the first one has come by now, or never will
	expect(t, <-released, nil)

	// Two requests, of which one is in doubt.
	ctx, giveUp := context.WithCancel(task)
	c = acquire(s, session, task, []string{"a"}, dlock.TTL(time.Hour))
	granting := asked("deny")
	c = append(c, acquire(s, session, ctx, []string{"a"}, dlock.Wait(dlock.Forever), dlock.TTL(time.Hour))...)
	granting <- stateError("57P01")
	asked("deny") <- "{NULL}"
	asked("deny") <- "{NULL}"
	expect(t, (<-c[0]).err, dlock.ErrRefused)
	again := s.next("acquire_each", "a").answer
	giveUp()
	expect(t, (<-c[1]).err, context.Canceled)
	again <- stateError("XX000")
	s.next("acquire_each", "a").answer <- stateError("XX000")
	s.next("lease", "a").answer <- `{1} [{"token":8}]`
	s.next("release_each", "a").answer <- "{t}"
	s.next("lease", "a").answer <- "{1} [null]" // it had been entered once
	c = acquire(s, session, task, []string{"a"}, dlock.TTL(time.Hour))
	asked("deny") <- "{9}"
	s.release((<-c[0]).lease)
}

// A lock that its task enters again is entered once, whatever the request is told last.
func TestReentry(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	asked := func(reentry string) chan any {
		t.Helper()
		statement := s.next("acquire_each", "a")
		if statement.args[5] != reentry {
			t.Fatal(statement.args)
		}
		return statement.answer
	}
	c := acquire(s, session, context.Background(), []string{"a"}, dlock.Wait(20*time.Millisecond), dlock.Reenter())
	asked("count") <- "{NULL}"
	asked("return") <- "{2}"
	if r := <-c[0]; r.err != nil || r.lease.Token != 2 {
		t.Fatal(r)
	}
	s.none()
}

// A lease that is lost cancels the context, calls OnLost, and gives the error, also that of the work.
func TestLoss(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	failed := errors.New("half done")
	called := make(chan bool, 1)
	done := make(chan error)
	go func() {
		done <- session.Lease(context.Background(), "job", func(ctx context.Context, lease *dlock.Lease) error {
			<-ctx.Done()
			return failed
		}, dlock.OnLost(func(*dlock.Lease) { called <- true }))
	}()
	s.next("acquire_each", "job").answer <- "{7}"
	s.next("renew_each", "job").answer <- "{f}"
	s.next("release_each", "job").answer <- "{f}"
	err := <-done
	expect(t, err, dlock.ErrLost)
	expect(t, err, failed)
	<-called
}

// Work is not begun under a lease that has ended.
func TestRunLate(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	lease := held(s, session, "job")
	s.next("renew_each", "job").answer <- "{f}"
	for !lease.Lost() {
		time.Sleep(time.Millisecond)
	}
	done := make(chan error)
	go func() {
		done <- lease.Run(context.Background(), func(context.Context, *dlock.Lease) error {
			t.Error("it has begun")
			return nil
		})
	}()
	s.next("release_each", "job").answer <- "{f}"
	expect(t, <-done, dlock.ErrLost)
}

// A task whose capture has ended is not begun; one whose handler ends its goroutine has ended.
func TestTasks(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	for _, ttl := range []time.Duration{time.Microsecond, time.Hour} {
		ctx, stop := context.WithCancel(context.Background())
		begun, done := make(chan bool, 1), make(chan error)
		go func() {
			done <- session.Work(ctx, "queue", func(context.Context, *dlock.Task) error {
				begun <- true
				runtime.Goexit()
				return nil
			}, dlock.TTL(ttl))
		}()
		s.any(false).answer <- "job 7 null 0 1 ready"
		if ttl < time.Hour {
			s.next("task_release", "queue").answer <- "{t}"
		} else {
			<-begun
		}
		again := s.any(false)
		if again.what != "task_capture" || len(begun) > 0 {
			t.Fatal(again, len(begun))
		}
		stop()
		again.answer <- stateError("XX000")
		expect(t, <-done, nil)
	}
}

// A task that a transaction of its own finishes is not lost by that, nor renewed while that commits.
func TestFinished(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	ctx, stop := context.WithCancel(context.Background())
	tasks, commits, done := make(chan *dlock.Task), make(chan error), make(chan error)
	go func() {
		done <- session.Work(ctx, "queue", func(ctx context.Context, task *dlock.Task) error {
			for failed := true; failed; {
				tasks <- task
				failed = nil != task.Transact(ctx, func(_ context.Context, _, leave func(dlock.Execer) error) error {
					err := leave(dlock.ExecFunc(func(context.Context, string) error { return nil }))
					tasks <- task
					if committed := <-commits; committed != nil {
						return committed
					}
					return err
				})
			}
			tasks <- task
			return <-commits
		}, dlock.TTL(time.Hour))
	}()
	s.any(false).answer <- "job 7 null 0 1 ready"
	for _, committed := range []error{stateError("40001"), nil} {
		renewal := s.any(true)
		<-tasks
		task := <-tasks
		if committed != nil {
			renewal.answer <- "{f}"
			s.none()
			session.Tick()
			s.none()
		}
		expect(t, task.Err(), nil)
		commits <- committed
		if committed == nil {
			<-tasks
			renewal.answer <- "{f}"
			s.none()
			task.Outlive()
			session.Tick()
			expect(t, task.Err(), nil)
		}
	}
	stop()
	commits <- nil
	expect(t, <-done, nil)
}

// Renewals that fail are told once.
func TestTrouble(t *testing.T) {
	t.Parallel()
	s, session, logger := start(t)
	lease := held(s, session, "job")
	s.next("renew_each", "job").answer <- stateError("XX000")
	s.next("renew_each", "job").answer <- stateError("XX000")
	s.next("renew_each", "job").answer <- "{t}"
	go func() { _ = lease.Release() }()
	s.next("release_each", "job").answer <- "{t}"
	if message := <-logger.messages; !strings.Contains(message, "renewals fail") || len(logger.messages) > 0 {
		t.Error(message, len(logger.messages))
	}
}

// A server that is silent: the work ends, whatever the driver does.
func TestSilence(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	lease := held(s, session, "job", dlock.TTL(600*time.Millisecond))
	ctx, cancel := lease.Context(context.Background())
	defer cancel()
	<-ctx.Done()
	expect(t, lease.Err(), dlock.ErrUnreachable)
	if why := lease.Err().Error(); !strings.HasSuffix(why, "the server does not answer") {
		t.Error(why)
	}
}

// Closed: what is held is released, or granted late; and what waits gives up its place.
func TestClose(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	held(s, session, "job")
	c := acquire(s, session, context.Background(), []string{"other"}, dlock.Wait(dlock.Forever))
	s.next("acquire_each", "other").answer <- "{NULL}"
	c = append(c, acquire(s, session, context.Background(), []string{"late"})...)
	granting := s.next("acquire_each", "late")
	once := make(chan error)
	s.beside(session, func() {
		_, err := session.Once(context.Background(), "slot", time.Hour)
		once <- err
	})
	closed := make(chan error)
	go func() { closed <- session.Close() }()
	for i := range c {
		expect(t, (<-c[i]).err, dlock.ErrClosed)
	}
	expect(t, <-once, dlock.ErrClosed)
	granting.answer <- "{8}"
	for late := false; !late; {
		asked := s.any(true)
		late = asked.what == "release_each" && asked.args[0] == `{"late"}`
		asked.answer <- map[string]string{"release_each": "{t}", "renew_each": "{t}", "acquire_each": "{NULL}"}[asked.what]
	}
	for released := false; ; {
		select {
		case asked := <-s.asked:
			released = released || asked.what == "release_each"
			asked.answer <- map[string]string{"release_each": "{t}", "renew_each": "{t}", "acquire_each": "{NULL}"}[asked.what]
			continue
		case err := <-closed:
			if err != nil || !released {
				t.Error(err, released)
			}
		}
		break
	}
}

// Tokens are presented as text that means the same in each encoding; errors of the driver are of a kind.
func TestPresent(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	lease := held(s, session, `a'\é😀"`)
	var query string
	err := session.Present(context.Background(), dlock.ExecFunc(func(_ context.Context, text string) error {
		query = text
		return stateError("LK003")
	}), lease)
	expect(t, err, dlock.ErrTokenMissing)
	if expected := `E'"a''\\\u00E9\uD83D\uDE00""=7"'`; !strings.Contains(query, expected) {
		t.Error(query)
	}
	go func() { _ = lease.Release() }()
	s.next("release_each", `a'\é😀"`).answer <- "{t}"
	for lease.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	expect(t, session.Present(context.Background(), nil, lease), dlock.ErrLost)
	for code, kind := range map[string]error{"LK001": dlock.ErrTokenStale, "LK002": dlock.ErrLost, "40P01": dlock.ErrDeadlock} {
		expect(t, dlock.Explain(fmt.Errorf("wrapped: %w", stateError(code))), kind)
	}
}

// A task has a context; a wait for a lease of its own is an error at once.
func TestOwner(t *testing.T) {
	t.Parallel()
	s, session, _ := start(t)
	inner := make(chan result, 1)
	done := make(chan error)
	go func() {
		done <- session.Lease(context.Background(), "job", func(ctx context.Context, lease *dlock.Lease) error {
			_, err := session.Acquire(ctx, "job", dlock.Wait(time.Hour))
			expect(t, err, dlock.ErrDeadlock)
			other, err := session.Acquire(ctx, "other")
			inner <- result{other, err}
			return err
		})
	}()
	outer := s.next("acquire_each", "job")
	outer.answer <- "{7}"
	statement := s.next("acquire_each", "other")
	statement.answer <- "{8}"
	if r := <-inner; r.err != nil || statement.args[1] != outer.args[1] {
		t.Error("the owner of a lease within another", r, statement.args[1])
	}
	s.next("release_each", "job").answer <- "{t}"
	expect(t, <-done, nil)

	// A task that the program names by a number is none that has been numbered.
	acquire(s, session, context.Background(), []string{"b"})
	if owner := s.next("acquire_each", "b").args[1].(string); !strings.Contains(owner, "#~") {
		t.Error(owner)
	}
}

// What is asked of several servers is asked of the one that has the lock.
func TestShards(t *testing.T) {
	t.Parallel()
	first, one, _ := start(t)
	second, other, _ := start(t)
	shards := dlock.Shards{one, other}
	ctx, enough := context.Background(), errors.New("enough")
	answers := map[string]string{"acquire_each": "{7}", "release_each": "{t}", "watch": "{NULL} [null]", "once": "8"}
	release := func(lease *dlock.Lease, err error) error {
		if err == nil {
			err = lease.Release()
		}
		return err
	}
	for name, s := range map[string]*server{"123456789": first, "a": second, "b": second, "über": first} {
		for what, call := range map[string]func(name string) error{
			"lease": func(name string) error {
				return shards.Lease(ctx, name, func(context.Context, *dlock.Lease) error { return nil })
			},
			"acquire": func(name string) error { return release(shards.Acquire(ctx, name)) },
			"permit":  func(name string) error { return release(shards.AcquirePermit(ctx, name, 2)) },
			"elect": func(name string) error {
				return shards.Elect(ctx, name, func(context.Context, *dlock.Lease) error { return enough })
			},
			"watch": func(name string) error {
				return shards.Watch(ctx, name, time.Hour, func(*dlock.Holder) error { return enough })
			},
			"once": func(name string) error { _, err := shards.Once(ctx, name, time.Hour); return err },
		} {
			done := make(chan error)
			go func(call func(string) error, name string) { done <- call(name) }(call, name)
			for asked, ended := 0, false; !ended; {
				select {
				case statement := <-s.asked:
					asked++
					if !strings.Contains(fmt.Sprint(statement.args[0]), name) {
						t.Error(what, name, statement)
					}
					statement.answer <- answers[statement.what]
				case err := <-done:
					ended = true
					if asked == 0 || (err != nil && err != enough) {
						t.Error(what, name, asked, err)
					}
				case <-time.After(time.Minute):
					t.Fatal(what, name, "is asked of nobody, or of another server")
				}
			}
		}
	}
	expect(t, shards.Close(), nil)
	for _, name := range []string{"123456789", "a"} {
		_, err := shards.Acquire(ctx, name)
		expect(t, err, dlock.ErrClosed)
	}
}

// Several servers have one client, unless the program names it; and without one of them there is none.
func TestOpenShards(t *testing.T) {
	t.Parallel()
	for _, options := range [][]dlock.SessionOption{nil, {dlock.Client("own")}} {
		shards, err := dlock.OpenShards("none", []string{"one", "other"}, options...)
		expect(t, err, nil)
		if len(shards) != 2 || shards[0].Client() != shards[1].Client() || (shards[0].Client() == "own") != (options != nil) {
			t.Error(shards)
		}
		expect(t, shards.Close(), nil)
	}
	if _, err := dlock.OpenShards("none", []string{"one", "wrong"}); err == nil {
		t.Error("a server that there is not")
	}
}

type noDriver struct{}

func init() { sql.Register("none", noDriver{}) }

func (noDriver) Open(string) (driver.Conn, error) { return nil, errors.New("there is none") }
func (noDriver) OpenConnector(name string) (driver.Connector, error) {
	if name == "wrong" {
		return nil, errors.New(name)
	}
	return none{}, nil
}

// The session of a pool that has no room for it.
func TestSmallPool(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(none{})
	db.SetMaxOpenConns(2)
	session := dlock.Connect(db)
	if session != dlock.Connect(db) {
		t.Error("a pool has one session")
	}
	_, err := session.Acquire(context.Background(), "job")
	expect(t, err, dlock.ErrUnsupported)
	if err := session.Close(); err != nil {
		t.Error(err)
	}
	_, err = session.Acquire(context.Background(), "job")
	expect(t, err, dlock.ErrClosed)
	if session == dlock.Connect(db) {
		t.Error("a session that is closed")
	}
}

type none struct{}

func (none) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("there is none") }
func (none) Driver() driver.Driver                        { return nil }
