package dlock

// Connections of a session, and what is asked over them.  What comes up while a statement
// is on its way waits for the next one, which then asks for all of its kind at once.
// Nothing waits for company: if a line is free, a request is sent at once.

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Most requests in a statement.
const mostInBatch = 1000

// How long a request waits for its statement, and then the statement for its answer; the same of an urgent
// one; what a statement has at least, for one request that is at the end of its time must not end the connection under
// others; and how long an unused connection stays open.
const (
	answerWithin = 10 * time.Second
	urgentWithin = 5 * time.Second
	leastWithin  = time.Second
	idleWithin   = 10 * time.Second
)

// What is there, and where.  Names are UTF-8, whatever the database has.
const lookSQL = `SELECT s.schema, s.names, s.version, pg_catalog.current_database(), pg_catalog.pg_backend_pid()::text,
  pg_catalog.set_config('client_encoding', 'UTF8', false),
  pg_catalog.set_config('application_name', coalesce(nullif(pg_catalog.current_setting('application_name'), ''), 'dlock'), false)
FROM (VALUES (1)) AS always LEFT JOIN (
  SELECT pg_catalog.format('%I.', n.nspname) AS schema, pg_catalog.string_agg(DISTINCT p.proname, ' ') AS names, e.extversion AS version
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid
  WHERE p.proname LIKE 'dlock\_%' GROUP BY n.nspname, e.extversion
  ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1) AS s ON true`

var needed = []string{"dlock_acquire_each", "dlock_renew_each", "dlock_release_each", "dlock_take"}

// A kind of request.  Its statement has an array as parameter for each element of a request's row, then what
// is shared.  The answer to many is an array, in order; a second column may have a note for
// each, as JSON.
type kind struct {
	key    any    // requests of equal keys can be asked in one statement; nil: alone
	rank   int    // 0 is urgent: it goes first, and does not stand behind a grant; while the first line is busy with one, there is a second one
	text   string // with @ for the schema
	shared func() []any
}

// A request is answered once.
type request struct {
	*kind
	row    []any // strings, or nil
	within time.Duration
	then   func(answer) // must not block
	done   chan answer  // or else it is told here
	timer  *time.Timer
	part   int  // of a batch that has failed: only these go together
	taken  bool // by a line
	gone   bool // withdrawn
}

type answer struct {
	value string           // of one among many
	note  *json.RawMessage // the same
	rows  [][]*string      // of one that was alone
	sent  time.Time
	err   error
	doubt bool // has it been done, perhaps?
}

func (r *request) settle(a answer) {
	if r.then != nil {
		r.then(a)
		return
	}
	r.timer.Stop()
	r.done <- a
}

type lines struct {
	source Source
	idle   time.Duration // how long an unused connection stays open

	mu     sync.Mutex
	lines  []*line
	queues [2][]*request // what is urgent, and the usual
	parts  int
	schema string // quoted, with a point
	closed bool
}

// A line is a goroutine with a connection, if it is open.
type line struct {
	*lines
	work chan []*request
	conn Conn
	ctx  context.Context // of the connection

	// Protected by the mutex.
	open   bool
	busy   bool
	urgent bool       // what it asks
	batch  []*request // the same
	sent   time.Time  // when that was sent, if it was
	cancel context.CancelFunc
	left   bool // to itself: it did not come back in time, and another one has its place
}

func newLines(source Source, count int) *lines {
	l := &lines{source: source, idle: idleWithin}
	for i := 0; i < count; i++ {
		l.lines = append(l.lines, l.newLine())
	}
	return l
}

// Room for a batch and for the word that all is closed: who sends has the mutex, and must not wait for the line, which may want it.
func (l *lines) newLine() *line { return &line{lines: l, work: make(chan []*request, 2)} }

func (l *lines) submit(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.done != nil { // not before: what the timer calls may come at once, and stops it
		r.timer = time.AfterFunc(r.within, func() {
			l.withdraw(r, failure(ErrUnreachable, nil, "the server did not get to answer in time"))
		})
	}
	l.queues[r.rank] = append(l.queues[r.rank], r)
	l.pump()
}

// Begin to ask.
func (l *lines) start(within time.Duration, k *kind, row ...any) *request {
	r := &request{kind: k, row: row, within: within, done: make(chan answer, 1)}
	l.submit(r)
	return r
}

func (l *lines) where() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.schema
}

// Ask, and wait for the answer.
func (l *lines) ask(within time.Duration, k *kind, row ...any) answer {
	return <-l.start(within, k, row...).done
}

// Take a request out of the queue, if it is there still.
func (l *lines) withdraw(r *request, why error) bool {
	l.mu.Lock()
	waits := !r.taken && !r.gone
	r.gone = r.gone || waits
	l.mu.Unlock()
	if waits {
		r.settle(answer{err: why})
	}
	return waits
}

// Give free lines something to do; the mutex is held.
func (l *lines) pump() {
	for i, c := range l.lines {
		if c.busy || i > 0 && l.lines[0].urgent {
			continue
		}
		if batch := c.next(); batch != nil {
			if !c.open {
				c.open = true
				go c.run()
			}
			c.work <- batch
		}
	}
}

// What it is to ask next; the mutex is held.
func (c *line) next() []*request {
	batch := c.take(0)
	if batch == nil && c == c.lines.lines[0] {
		batch = c.take(1)
	}
	c.busy, c.urgent = batch != nil, batch != nil && batch[0].rank == 0
	return batch
}

// Take the first request, and those that can go with it.
func (l *lines) take(rank int) (batch []*request) {
	var rest []*request
	for _, r := range l.queues[rank] {
		if r.gone {
			continue
		}
		if len(batch) == 0 || r.key != nil && r.key == batch[0].key && r.part == batch[0].part && len(batch) < mostInBatch {
			r.taken = true
			batch = append(batch, r)
		} else {
			rest = append(rest, r)
		}
	}
	l.queues[rank] = rest
	return batch
}

// Ask, until there has been nothing to ask for a while.
func (c *line) run() {
	for {
		idle := time.NewTimer(c.idle)
		var batch []*request
		over := false
		select {
		case batch = <-c.work:
			idle.Stop()
		case <-idle.C:
			over = true
		}
		for batch != nil {
			c.ask(batch)
			if len(batch) > 1 {
				runtime.Gosched() // those that have been answered ask before the next batch is taken
			}
			c.mu.Lock()
			if c.left {
				c.mu.Unlock()
				c.drop()
				return
			}
			batch = c.next()
			c.pump()
			c.mu.Unlock()
		}
		c.mu.Lock()
		over = (over || c.closed) && !c.busy
		if over {
			c.drop() // before somebody else can open it
		}
		c.open = !over
		c.mu.Unlock()
		if over {
			return
		}
	}
}

// Ask, and answer the requests.
func (c *line) ask(batch []*request) {
	within := batch[0].within
	for _, r := range batch {
		within = shorter(within, r.within)
	}
	c.mu.Lock()
	c.batch, c.sent = batch, time.Time{}
	if c.conn == nil {
		c.ctx, c.cancel = context.WithCancel(context.Background())
	}
	c.mu.Unlock()
	if within < leastWithin {
		within = leastWithin
	}
	timer := time.AfterFunc(within, func() { c.leave(batch) })
	rows, err := c.query(batch)
	timer.Stop()
	c.mu.Lock()
	left, sent := c.left, c.sent
	c.batch = nil
	c.mu.Unlock()
	switch {
	case left:
	case err != nil:
		// Perhaps the extension has been created anew, or elsewhere, or there is a pooler.
		if isOutage(err) || sent.IsZero() || hasPrefix(sqlState(err), "42883", "3F000", "26000", "42P05") || routine(err) == "RevalidateCachedQuery" {
			c.drop()
		}
		c.failed(batch, err, sent)
	case batch[0].key == nil:
		batch[0].settle(answer{rows: rows, sent: sent})
	default:
		values := strings.Split(strings.Trim(*rows[0][0], "{}"), ",")
		notes := make([]*json.RawMessage, len(batch))
		if len(rows[0]) > 1 && rows[0][1] != nil {
			_ = json.Unmarshal([]byte(*rows[0][1]), &notes)
		}
		for i, r := range batch {
			r.settle(answer{value: values[i], note: notes[i], sent: sent})
		}
	}
}

// It does not come back in time.  Another line has its place, for a driver may wait for ever for a server that is silent.
func (c *line) leave(batch []*request) {
	c.mu.Lock()
	if len(c.batch) == 0 || &c.batch[0] != &batch[0] { // half of it may be asked again
		c.mu.Unlock()
		return
	}
	c.left = true
	c.cancel()
	sent, what := c.sent, "the server does not answer"
	if sent.IsZero() {
		what = "no connection was to be had in time"
	}
	for i, other := range c.lines.lines {
		if other == c {
			c.lines.lines[i] = c.newLine()
		}
	}
	c.pump()
	c.mu.Unlock()
	c.failed(batch, failure(ErrUnreachable, context.DeadlineExceeded, "%s", what), sent)
}

// An error of many is traced to those whose it is, by asking for halves: a statement that fails changes nothing.
func (c *line) failed(batch []*request, err error, sent time.Time) {
	if half := len(batch) / 2; !sent.IsZero() && half > 0 && isOfOne(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.parts += 2
		for i, r := range batch {
			r.taken, r.part = false, c.parts
			if i < half {
				r.part--
			}
		}
		q := &c.queues[batch[0].rank]
		*q = append(batch, *q...)
		return
	}
	a := answer{err: err}
	if isOutage(err) {
		a.doubt = !sent.IsZero() && sqlState(err) != "25006" // nothing happens on a standby
		if !errors.Is(err, ErrUnreachable) {
			a.err = failure(ErrUnreachable, err, "%v", err)
		}
	}
	for _, r := range batch {
		r.settle(a)
	}
}

// One statement, on a connection that is made if there is none.
func (c *line) query(batch []*request) ([][]*string, error) {
	if c.conn == nil {
		if err := c.connect(); err != nil {
			c.cancel()
			return nil, err
		}
	}
	first := batch[0]
	args := make([]any, len(first.row), len(first.row)+8)
	for i := range first.row {
		if first.key == nil {
			args[i] = first.row[i]
			continue
		}
		column := make([]any, len(batch))
		for j, r := range batch {
			column[j] = r.row[i]
		}
		args[i] = array(column)
	}
	if first.shared != nil {
		args = append(args, first.shared()...)
	}
	c.mu.Lock()
	left, text := c.left, strings.ReplaceAll(first.text, "@", c.schema)
	c.sent = time.Now()
	c.mu.Unlock()
	if left {
		return nil, context.Canceled // the requests have been told that it was not sent
	}
	return c.conn.Query(c.ctx, text, args...)
}

func (c *line) connect() error {
	conn, err := c.source.Connect(c.ctx)
	if err != nil {
		return err
	}
	schema, err := look(c.ctx, conn)
	if err != nil {
		conn.Close()
		return err
	}
	c.conn = conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schema = schema
	return nil
}

func look(ctx context.Context, conn Conn) (schema string, err error) {
	rows, err := conn.Query(ctx, lookSQL)
	if err != nil {
		return "", err
	}
	row := rows[0]
	if row[0] == nil {
		return "", failure(ErrUnsupported, nil,
			"the database has no dlock; a role with the right to do so has to run CREATE EXTENSION dlock in database %q", *row[3])
	}
	for _, name := range needed {
		if !strings.Contains(" "+*row[1]+" ", " "+name+" ") {
			return "", failure(ErrUnsupported, nil,
				"dlock of the server is too old: %s() is missing; a role with the right to do so has to run ALTER EXTENSION dlock UPDATE in database %q", name, *row[3])
		}
	}
	if direct, ok := conn.(Direct); ok {
		direct.Backend(*row[4])
	}
	return *row[0], nil
}

// End the connection.
func (c *line) drop() {
	if c.conn != nil {
		go func(conn Conn, end context.CancelFunc) {
			conn.Close()
			end()
		}(c.conn, c.cancel)
		c.conn = nil
	}
}

func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.lines {
		if c.open && !c.busy {
			c.work <- nil
		}
	}
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// An array of texts, as text.
func arrayOf(texts []string) string {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return array(all)
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
