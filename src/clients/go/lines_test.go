package dlock

// What a line does at moments that its callers cannot choose.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"
	"time"
)

// A server that takes its time, unless the connection ends.
type slowSource struct{}
type slowConn struct{}

func (slowSource) Connect(context.Context) (Conn, error) { return slowConn{}, nil }

func (slowConn) Close() {}

func (slowConn) Query(ctx context.Context, query string, args ...any) ([][]*string, error) {
	row := []string{"{t,t}"}
	if query == lookSQL {
		row = []string{"s.", strings.Join(needed, " "), "1.0", "db", "17", "", ""}
	} else {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	values := make([]*string, len(row))
	for i := range row {
		values[i] = &row[i]
	}
	return [][]*string{values}, nil
}

// A request at the end of its time ends no connection under others.
func TestLittleTime(t *testing.T) {
	t.Parallel()
	l, answers := newLines(slowSource{}, 1), make(chan answer, 2)
	l.mu.Lock()
	for _, within := range []time.Duration{0, answerWithin} {
		l.queues[0] = append(l.queues[0], &request{kind: renewKind, row: []any{"a", "1"}, within: within, then: func(a answer) { answers <- a }})
	}
	l.pump()
	l.mu.Unlock()
	for i := 0; i < 2; i++ {
		if a := <-answers; a.err != nil || a.value != "t" {
			t.Error(a)
		}
	}
	l.close()
}

// A request without time is answered, and no timer is met half made.
func TestNoTime(t *testing.T) {
	t.Parallel()
	l := newLines(slowSource{}, 1)
	l.lines[0].busy = true
	for i := 0; i < 20000; i++ {
		if a := l.ask(-1, renewKind, "a", "1"); a.err == nil || a.doubt {
			t.Fatal(a)
		}
	}
}

// The time of a batch that was over ends no half of it, which is asked again.
func TestLateTimer(t *testing.T) {
	t.Parallel()
	c := newLines(slowSource{}, 1).lines[0]
	r := &request{kind: renewKind, then: func(answer) { t.Error("an answer") }}
	c.batch = []*request{r}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.leave([]*request{r, r})
	if c.left || c.ctx.Err() != nil {
		t.Error("the connection has ended")
	}
}

// A turn is that of a request that may have a place: one that has none may have asked for another lease.
func TestTurnOfAnother(t *testing.T) {
	t.Parallel()
	s, without, with, token := ConnectTo(t, slowSource{}), &want{}, &want{placed: true}, "7"
	s.stakes[stakeKey("o", "a")] = &stake{places: []*want{without, with}}
	s.taken("a", "o", &token, time.Now())
	if without.got != nil || with.got == nil {
		t.Error(without.got, with.got)
	}
}

// A request after the end, and before the line has seen that, does not wait for the line: it may want the mutex.
func TestLate(t *testing.T) {
	t.Parallel()
	l, submitted := newLines(slowSource{}, 1), make(chan bool)
	l.lines[0].open = true // by a goroutine that is not there
	l.close()
	go func() {
		l.submit(&request{kind: renewKind, row: []any{"a", "1"}})
		close(submitted)
	}()
	select {
	case <-submitted:
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}

// A pooler without a server: it connects, and does not answer.
type silentPooler struct{}

func (silentPooler) Connect(context.Context) (driver.Conn, error) { return silentPooler{}, nil }
func (silentPooler) Driver() driver.Driver                        { return nil }
func (silentPooler) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (silentPooler) Begin() (driver.Tx, error)                    { return nil, driver.ErrSkip }
func (silentPooler) Close() error                                 { return nil }

func (silentPooler) QueryContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Rows, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A connection that does not answer at all is not left open.
func TestSilentPooler(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(silentPooler{})
	l := newLines(&sqlSource{db, true}, 1)
	if a := l.ask(leastWithin, renewKind, "a", "1"); a.err == nil || a.doubt {
		t.Error(a)
	}
	for until := time.Now().Add(time.Minute); db.Stats().OpenConnections > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it is open")
		}
	}
	l.close()
}
