package dlock

// Connections of a session, and what is asked over them.  What comes up while a statement
// is on its way waits for the next one, which then asks for all of its kind at once.
// Nothing waits for company: if a line is free, a request is sent at once.

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Most requests in a statement.
const mostInBatch = 1000

// How long a statement may take, its connection included, if its kind says nothing; an
// urgent one; and how long an unused connection stays open.
const (
	answerWithin = 10 * time.Second
	urgentWithin = 5 * time.Second
	idleWithin   = 10 * time.Second
)

// What is there, and where.  Names are UTF-8, whatever the database has.
const lookSQL = `SELECT s.schema, s.names, s.version, pg_catalog.current_database(), pg_catalog.set_config('client_encoding', 'UTF8', false),
  pg_catalog.set_config('application_name', coalesce(nullif(pg_catalog.current_setting('application_name'), ''), 'dlock'), false)
FROM (VALUES (1)) AS always LEFT JOIN (
  SELECT pg_catalog.format('%I.', n.nspname) AS schema, pg_catalog.string_agg(DISTINCT p.proname, ' ') AS names, e.extversion AS version
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid
  WHERE p.proname LIKE 'dlock\_%' GROUP BY n.nspname, e.extversion
  ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1) AS s ON true`

var needed = []string{"dlock_acquire_each", "dlock_renew_each", "dlock_release_each", "dlock_take"}

// A server has functions in a schema, which is quoted.
type server struct {
	schema string
}

// A kind of request.  Its statement has an array as parameter for each element of a request's row, then what
// is shared.  The answer to many is an array, in order; a second column may have a note for
// each, as JSON.
type kind struct {
	key    string // requests of equal keys can be asked in one statement; empty: alone
	urgent bool   // it goes first, and does not stand behind a grant: while the first line is busy with one, there is a second one
	text   func(*server) string
	shared []any
	within time.Duration
}

// A request is answered once, by then; it must not block.
type request struct {
	*kind
	row   []any // strings, nil, or slices of strings
	then  func(answer)
	gone  bool // withdrawn
	taken bool // by a line
}

type answer struct {
	value string           // of one among many
	note  *json.RawMessage // the same
	rows  [][]*string      // of one that was alone
	sent  time.Time
	err   error
	doubt bool // has it been done, perhaps?
}

type lines struct {
	source Source
	margin *atomic.Int64 // how long an urgent statement may take by now
	server atomic.Pointer[server]

	mu     sync.Mutex
	lines  []*line
	queues [2]queue // what is urgent, and the usual
	closed bool
}

// What waits, in groups of equal keys.
type queue struct{ groups [][]*request }

type line struct {
	*lines

	// Protected by the mutex.
	link   *link
	busy   bool
	urgent bool // what it asks
	cancel context.CancelFunc
	idle   *time.Timer
}

type link struct {
	Conn
	server *server
}

func newLines(source Source, count int, margin *atomic.Int64) *lines {
	l := &lines{source: source, margin: margin}
	for i := 0; i < count; i++ {
		l.lines = append(l.lines, &line{lines: l})
	}
	return l
}

func (q *queue) add(r *request) {
	for i, group := range q.groups {
		if r.key != "" && group[0].key == r.key {
			q.groups[i] = append(group, r)
			return
		}
	}
	q.groups = append(q.groups, []*request{r})
}

// The next requests, of one kind.
func (q *queue) next() []*request {
	for len(q.groups) > 0 {
		group := q.groups[0]
		q.groups = q.groups[1:]
		var batch []*request
		for i, r := range group {
			if len(batch) == mostInBatch {
				q.groups = append(q.groups, group[i:])
				break
			}
			if !r.gone {
				r.taken = true
				batch = append(batch, r)
			}
		}
		if len(batch) > 0 {
			return batch
		}
	}
	return nil
}

func (l *lines) submit(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.urgent {
		l.queues[0].add(r)
	} else {
		l.queues[1].add(r)
	}
	l.pump()
}

// Take a request out of the queue, if it is there still.
func (l *lines) withdraw(r *request, why error) {
	l.mu.Lock()
	waits := !r.taken && !r.gone
	r.gone = r.gone || waits
	l.mu.Unlock()
	if waits {
		r.then(answer{err: why})
	}
}

// Ask, and wait for the answer.  Whoever stays waits for it, too, if the context ends when the request is on its way.
func (l *lines) ask(ctx context.Context, stay bool, k *kind, within time.Duration, row ...any) answer {
	done := make(chan answer, 1)
	r := &request{kind: k, row: row, then: func(a answer) { done <- a }}
	l.submit(r)
	timer := time.AfterFunc(within, func() {
		l.withdraw(r, failure(ErrUnreachable, nil, "the server did not get to answer in time"))
	})
	defer timer.Stop()
	select {
	case a := <-done:
		return a
	case <-ctx.Done():
	}
	l.withdraw(r, ctx.Err())
	if !stay {
		return answer{err: ctx.Err()}
	}
	return <-done
}

// Give free lines something to do.
func (l *lines) pump() {
	for i, c := range l.lines {
		if c.busy || i > 0 && l.lines[0].urgent {
			continue
		}
		batch := l.queues[0].next()
		if batch == nil && i == 0 {
			batch = l.queues[1].next()
		}
		if batch != nil {
			c.busy, c.urgent = true, batch[0].urgent
			if c.idle != nil {
				c.idle.Stop()
			}
			go c.work(batch)
		}
	}
}

func (c *line) work(batch []*request) {
	c.ask(batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy, c.urgent = false, false
	c.pump()
	if !c.busy && c.closed {
		c.drop()
	} else if !c.busy && c.link != nil {
		c.idle = time.AfterFunc(idleWithin, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.busy {
				c.drop()
			}
		})
	}
}

// Ask, and answer the requests.
func (c *line) ask(batch []*request) {
	within := batch[0].within
	if within == 0 {
		within = answerWithin
	}
	if batch[0].urgent {
		within = urgentWithin
		if c.margin != nil {
			within = shorter(within, time.Duration(c.margin.Load()))
		}
	}
	var args []any
	if batch[0].key == "" {
		for _, value := range batch[0].row {
			args = append(args, parameter(value))
		}
	} else {
		for i := range batch[0].row {
			column := make([]any, len(batch))
			for j, r := range batch {
				column[j] = r.row[i]
			}
			args = append(args, array(column))
		}
	}
	rows, sent, err := c.query(within, batch[0].kind, append(args, batch[0].shared...))
	switch {
	case err != nil:
		c.failed(batch, err, sent)
	case batch[0].key == "":
		batch[0].then(answer{rows: rows, sent: sent})
	default:
		values := strings.Split(strings.Trim(*rows[0][0], "{}"), ",")
		notes := make([]*json.RawMessage, len(batch))
		if len(rows[0]) > 1 && rows[0][1] != nil {
			_ = json.Unmarshal([]byte(*rows[0][1]), &notes)
		}
		for i, r := range batch {
			r.then(answer{value: values[i], note: notes[i], sent: sent})
		}
	}
}

// An error of many is traced to those whose it is, by asking for halves: a statement that fails changes nothing.
func (c *line) failed(batch []*request, err error, sent time.Time) {
	if half := len(batch) / 2; !sent.IsZero() && half > 0 && isOfOne(err) {
		c.ask(batch[:half])
		c.ask(batch[half:])
		return
	}
	a := answer{err: err}
	if isOutage(err) {
		a.doubt = !sent.IsZero() && sqlState(err) != "25006" // nothing happens on a standby
		if !errors.Is(err, ErrUnreachable) {
			a.err = failure(ErrUnreachable, err, "%v", err)
		}
	}

	// Perhaps the extension has been created anew.
	if isOutage(err) || sent.IsZero() || sqlState(err) == "42883" {
		c.mu.Lock()
		c.drop()
		c.mu.Unlock()
	}
	for _, r := range batch {
		r.then(a)
	}
}

// One statement, on a connection that is made if there is none.  A driver may not come back from a
// server that is silent: then it is left to itself.
func (c *line) query(within time.Duration, k *kind, args []any) ([][]*string, time.Time, error) {
	type result struct {
		link *link
		rows [][]*string
		err  error
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c.mu.Lock()
	old := c.link
	c.link, c.cancel = nil, cancel
	c.mu.Unlock()
	var sent atomic.Pointer[time.Time]
	done := make(chan result, 1)
	go func() {
		r := result{link: old}
		if r.link == nil {
			r.link, r.err = c.connect(ctx)
		}
		if r.err == nil {
			at := time.Now()
			sent.Store(&at)
			r.rows, r.err = r.link.Query(ctx, k.text(r.link.server), args...)
		}
		done <- r
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = failure(ErrUnreachable, ctx.Err(), "the server does not answer")
		go func() {
			if late := <-done; late.link != nil {
				late.link.Close()
			}
		}()
	}
	c.mu.Lock()
	c.link = r.link
	c.mu.Unlock()
	if at := sent.Load(); at != nil {
		return r.rows, *at, r.err
	}
	return nil, time.Time{}, r.err
}

func (l *lines) connect(ctx context.Context) (*link, error) {
	conn, err := l.source.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := look(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	l.server.Store(s)
	return &link{conn, s}, nil
}

func look(ctx context.Context, conn Conn) (*server, error) {
	rows, err := conn.Query(ctx, lookSQL)
	if err != nil {
		return nil, err
	}
	row := rows[0]
	if row[0] == nil {
		return nil, failure(ErrUnsupported, nil,
			"the database has no dlock; a role with the right to do so has to run CREATE EXTENSION dlock in database %q", *row[3])
	}
	for _, name := range needed {
		if !strings.Contains(" "+*row[1]+" ", " "+name+" ") {
			return nil, failure(ErrUnsupported, nil,
				"dlock of the server is too old: %s() is missing; a role with the right to do so has to run ALTER EXTENSION dlock UPDATE in database %q", name, *row[3])
		}
	}
	return &server{*row[0]}, nil
}

// End the connection; the mutex is held.
func (c *line) drop() {
	if c.link != nil {
		go c.link.Close()
		c.link = nil
	}
}

// End what is under way, too.
func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.lines {
		if c.cancel != nil {
			c.cancel()
		}
		c.drop()
	}
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.lines {
		if !c.busy {
			c.drop()
		}
	}
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// A parameter, as text.
func parameter(value any) any {
	if texts, ok := value.([]string); ok {
		all := make([]any, len(texts))
		for i, text := range texts {
			all[i] = text
		}
		return array(all)
	}
	return value
}

var inArray = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// An array of texts and nils, as text.
func array(values []any) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, value := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		if text, ok := value.(string); ok {
			b.WriteString(`"` + inArray.Replace(text) + `"`)
		} else {
			b.WriteString("NULL")
		}
	}
	return b.String() + "}"
}
