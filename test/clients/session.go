// A program of test/lib/DLockScenario.pm in Go: reads commands, a line of JSON each, and prints
// what comes of them, "ID EVENT...".  Its arguments are a driver for database/sql and whose connections the
// session has, "own" or "pool", and more settings; or "pgx5".
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.org/dlock"
)

// Whatever the driver is.
type driver struct {
	session *dlock.Session
	query   func(ctx context.Context, sql string) error
	tx      func(ctx context.Context, held dlock.Transactor, work func(run func(sql string) error, tx dlock.Execer) error) error
	begin   func(ctx context.Context, work func(run func(sql string) error, tx dlock.Execer) error) error // somebody else's transaction
	close   func()
}

type options struct {
	TTL, Wait     any
	Mode, Reentry string
	Permits       int
	Payload       any
	Concurrency   int
}

type command struct {
	ID, Do, Name, Path, In, SQL, Also, Queue, Query string
	Lease                                           string
	Names                                           any
	Leases                                          []string
	Options                                         options
	Every, Grace                                    any
	Count, Workflows, Concurrency, Locks, MS, Down  int
	Hold                                            bool
}

// With database/sql: a session of its own, or that of the pool, see main().
func openSQL(name string, own bool) (*driver, error) {
	settings := "sslmode=disable " + strings.Join(os.Args[3:], " ")
	db, err := sql.Open(name, settings)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(20)
	session := dlock.Connect(db, dlock.Log(trouble{}))
	if own {
		if session, err = dlock.Open(name, settings, dlock.Log(trouble{})); err != nil {
			return nil, err
		}
	}
	within := func(work func(func(string) error, dlock.Execer) error) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			return work(func(query string) error { _, err := tx.ExecContext(ctx, query); return err }, tx)
		}
	}
	return &driver{
		session: session,
		query:   func(ctx context.Context, query string) error { _, err := db.ExecContext(ctx, query); return err },
		tx: func(ctx context.Context, held dlock.Transactor, work func(func(string) error, dlock.Execer) error) error {
			return held.(interface {
				Tx(context.Context, dlock.Beginner, func(context.Context, *sql.Tx) error) error
			}).Tx(ctx, db, within(work))
		},
		begin: func(ctx context.Context, work func(func(string) error, dlock.Execer) error) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := within(work)(ctx, tx); err != nil {
				return err
			}
			return tx.Commit()
		},
		close: func() { db.Close() },
	}, nil
}

// Something that goes on until it is told to end.
type thing struct {
	lease   *dlock.Lease
	ctx     context.Context // of the work
	end     chan error
	cancel  context.CancelFunc
	proceed chan bool
}

var (
	d       *driver
	mu      sync.Mutex
	live    = map[string]*thing{}
	errFail = errors.New("failed")
	stall   atomic.Int64 // the longest time that this process did not run
)

func say(id string, words ...any) {
	os.Stdout.WriteString(id + " " + strings.TrimSuffix(fmt.Sprintln(words...), "\n") + "\n")
}

type trouble struct{}

func (trouble) Warn(message string, args ...any) { say("session", "trouble", message, args) }

func beat() {
	for last := time.Now(); ; {
		time.Sleep(20 * time.Millisecond)
		if lag := time.Since(last).Milliseconds(); lag > stall.Load() {
			stall.Store(lag)
		}
		last = time.Now()
	}
}

// Spans are milliseconds, or texts.
func span(value any) time.Duration {
	if number, ok := value.(float64); ok {
		return time.Duration(number * float64(time.Millisecond))
	}
	parts := regexp.MustCompile(`^(\d+) (\w+)$`).FindStringSubmatch(value.(string))
	unit := map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[parts[2]]
	var count int
	fmt.Sscan(parts[1], &count)
	return time.Duration(count) * unit
}

func (o *options) list() []dlock.Option {
	var list []dlock.Option
	add := func(given bool, option func() dlock.Option) {
		if given {
			list = append(list, option())
		}
	}
	add(o.TTL != nil, func() dlock.Option { return dlock.TTL(span(o.TTL)) })
	add(o.Wait != nil, func() dlock.Option { return dlock.Wait(span(o.Wait)) })
	add(o.Mode != "", func() dlock.Option { return dlock.Mode(o.Mode) })
	add(o.Reentry == "count", dlock.Reenter)
	add(o.Payload != nil, func() dlock.Option { return dlock.Payload(o.Payload) })
	add(o.Concurrency > 0, func() dlock.Option { return dlock.Concurrency(o.Concurrency) })
	return list
}

func outcome(err error) string {
	var e *dlock.Error
	var state interface{ SQLState() string }
	switch {
	case errors.Is(err, dlock.ErrRefused):
		errors.As(err, &e)
		if strings.HasPrefix(e.Holder, d.session.Client()) {
			return "refused self"
		}
		return "refused " + e.Holder
	case errors.Is(err, dlock.ErrDeadlock):
		return "LeaseDeadlock"
	case errors.Is(err, dlock.ErrTokenStale):
		return "TokenStale"
	case errors.Is(err, dlock.ErrTokenMissing):
		return "TokenMissing"
	case errors.Is(err, dlock.ErrLost):
		return "LeaseLost"
	case errors.Is(err, dlock.ErrUnreachable):
		return "ServerUnreachable"
	case errors.Is(err, dlock.ErrUnsupported):
		return "ServerUnsupported"
	case errors.Is(err, dlock.ErrClosed):
		return "SessionClosed"
	case errors.Is(err, context.Canceled):
		return "gave up"
	case errors.As(err, &state):
		return "error " + state.SQLState()
	}
	return "error " + err.Error()
}

func find(id string) thing {
	mu.Lock()
	defer mu.Unlock()
	return *live[id]
}

func acquire(ctx context.Context, c *command) (*dlock.Lease, error) {
	opts := c.Options.list()
	switch {
	case c.Names != nil:
		var names []string
		for _, name := range c.Names.([]any) {
			names = append(names, name.(string))
		}
		return d.session.AcquireAll(ctx, names, opts...)
	case c.Path != "":
		return d.session.AcquirePath(ctx, c.Path, opts...)
	case c.Options.Permits > 0:
		return d.session.AcquirePermit(ctx, c.Name, c.Options.Permits, opts...)
	}
	return d.session.Acquire(ctx, c.Name, opts...)
}

// At once: the first error.
func all(count int, do func(i int) error) error {
	errs := make(chan error, count)
	for i := 0; i < count; i++ {
		go func(i int) { errs <- do(i) }(i)
	}
	var first error
	for i := 0; i < count; i++ {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// What has leases by name.
type leaser interface {
	Lease(context.Context, string, func(context.Context, *dlock.Lease) error, ...dlock.Option) error
}

// Each name as a lease of its own, at once.
func each(ctx context.Context, c *command, of leaser) string {
	names := c.Names.([]any)
	results := make([]string, len(names))
	_ = all(len(names), func(i int) error {
		err := of.Lease(ctx, names[i].(string), func(context.Context, *dlock.Lease) error { return nil }, c.Options.list()...)
		if results[i] = "ok"; err != nil {
			fmt.Fprintln(os.Stderr, c.ID, err)
			results[i] = outcome(err)
		}
		return nil
	})
	return strings.Join(results, ", ")
}

var commands = map[string]func(context.Context, *command) (any, error){
	// A lease, until it is told to end, or to fail; in the task of another one.
	"lease": func(ctx context.Context, c *command) (any, error) {
		it := find(c.ID)
		if c.In != "" {
			outer, cancel := context.WithCancel(find(c.In).ctx)
			go func(own context.Context) {
				<-own.Done()
				cancel()
			}(ctx)
			ctx = outer
		}
		lease, err := acquire(ctx, c)
		if err != nil {
			return nil, err
		}
		return nil, lease.Run(ctx, func(ctx context.Context, lease *dlock.Lease) error {
			stall.Store(0)
			mu.Lock()
			live[c.ID].lease, live[c.ID].ctx = lease, ctx
			mu.Unlock()
			say(c.ID, "held", lease.Token)
			select {
			case err := <-it.end:
				return err
			case <-ctx.Done():
			}
			how := "late"
			if lease.Remaining() > 0 {
				how = "early"
			} else if stall.Load() > 300 {
				how = "stalled"
			}
			say(c.ID, "stopped", how)
			return nil
		})
	},

	// So many leases at once: held together, or one after the other on one lock, or on some.
	"many": func(ctx context.Context, c *command) (any, error) {
		leases := make([]*dlock.Lease, c.Count)
		err := all(c.Count, func(i int) (err error) {
			name := c.Name
			if name == "" {
				name = fmt.Sprintf("%s:%d", c.ID, i)
			} else if names, some := c.Names.(float64); some {
				name = fmt.Sprintf("%s:%d", name, i%int(names))
			}
			leases[i], err = d.session.Acquire(ctx, name, c.Options.list()...)
			if err == nil && !c.Hold {
				return leases[i].Release()
			}
			return err
		})
		if err != nil || !c.Hold {
			return nil, err
		}
		say(c.ID, "held", c.Count)
		<-find(c.ID).end
		return nil, all(c.Count, func(i int) error { return leases[i].Release() })
	},

	// Each name as a lease of its own, at once: what comes of each.
	"each": func(ctx context.Context, c *command) (any, error) { return each(ctx, c, d.session), nil },

	// The same, of two servers of which one is down.
	"shards": func(ctx context.Context, c *command) (any, error) {
		servers := []string{"sslmode=disable", "sslmode=disable"}
		servers[c.Down] = "host=/nonexistent"
		shards, err := dlock.OpenShards("pgx", servers)
		if err != nil {
			return nil, err
		}
		defer shards.Close()
		return each(ctx, c, shards), nil
	},

	// Which of so many servers has each of the locks.
	"shard": func(ctx context.Context, c *command) (any, error) {
		var servers, shards []string
		for i := 0; i < c.Count; i++ {
			servers = append(servers, fmt.Sprint(i))
		}
		for _, name := range c.Names.([]any) {
			shards = append(shards, dlock.ShardOf(name.(string), servers))
		}
		return strings.Join(shards, ", "), nil
	},

	// Workflows, so many at a time, each with some leases, one within the other, and work in the pool.
	"load": func(ctx context.Context, c *command) (any, error) {
		var next atomic.Int64
		names := int(c.Names.(float64))
		var flow func(ctx context.Context, i, depth int) error
		flow = func(ctx context.Context, i, depth int) error {
			if depth == c.Locks {
				return d.query(ctx, c.Query)
			}
			return d.session.Lease(ctx, fmt.Sprintf("load:%d:%d", depth, (i*7+depth)%names), func(ctx context.Context, _ *dlock.Lease) error {
				return flow(ctx, i, depth+1)
			}, dlock.Wait(2*time.Minute))
		}
		err := all(c.Concurrency, func(int) error {
			for {
				i := int(next.Add(1))
				if i > c.Workflows {
					return nil
				}
				if err := flow(ctx, i-1, 0); err != nil {
					return err
				}
			}
		})
		return c.Workflows, err
	},

	"once": func(ctx context.Context, c *command) (any, error) {
		token, err := d.session.Once(ctx, c.Name, span(c.Every))
		if token == 0 {
			return "no", err
		}
		return "won", err
	},

	"elect": func(ctx context.Context, c *command) (any, error) {
		it := find(c.ID)
		go func() {
			<-it.end
			it.cancel()
		}()
		return nil, d.session.Elect(ctx, c.Name, func(ctx context.Context, lease *dlock.Lease) error {
			say(c.ID, "gained")
			<-ctx.Done()
			if lease.Err() != nil {
				say(c.ID, "resigned", outcome(lease.Err()))
			} else {
				say(c.ID, "resigned", "ok")
			}
			return nil
		}, c.Options.list()...)
	},

	"watch": func(ctx context.Context, c *command) (any, error) {
		it := find(c.ID)
		go func() {
			<-it.end
			it.cancel()
		}()
		return nil, d.session.Watch(ctx, c.Name, 50*time.Millisecond, func(holder *dlock.Holder) error {
			if holder == nil {
				say(c.ID, "sees", "nobody")
			} else {
				say(c.ID, "sees", holder.Owner)
			}
			return nil
		})
	},

	"worker": worker,

	// A transaction of the lease; with "also", it presents the tokens of another one, too.
	"write": func(ctx context.Context, c *command) (any, error) {
		return "written", d.tx(ctx, find(c.Lease).lease, func(run func(sql string) error, tx dlock.Execer) error {
			if c.Also != "" {
				if err := d.session.Present(ctx, tx, find(c.Also).lease); err != nil {
					return err
				}
			}
			return run(c.SQL)
		})
	},

	// In a transaction of somebody else.
	"build": func(ctx context.Context, c *command) (any, error) {
		return "written", d.begin(ctx, func(run func(sql string) error, tx dlock.Execer) error {
			var leases []*dlock.Lease
			for _, id := range c.Leases {
				leases = append(leases, find(id).lease)
			}
			if err := d.session.Present(ctx, tx, leases...); err != nil {
				return err
			}
			return run(c.SQL)
		})
	},

	// The process does not get to run.
	"block": func(ctx context.Context, c *command) (any, error) {
		script := fmt.Sprintf("kill -STOP $PPID; sleep %f; kill -CONT $PPID", float64(c.MS)/1000)
		if err := exec.Command("sh", "-c", script).Run(); err != nil {
			return nil, err
		}
		return find(c.Lease).lease.Lost(), nil
	},

	"close": func(ctx context.Context, c *command) (any, error) {
		return nil, d.session.Close()
	},
}

// A task fails if its payload says so, writes if its payload says what, or waits to be told.
func worker(ctx context.Context, c *command) (any, error) {
	it := find(c.ID)
	var mu sync.Mutex
	running, most := map[string]bool{}, 0
	options := c.Options.list()

	// The first tasks go on as soon as so many are there.
	all := make(chan struct{})
	if c.Options.Concurrency == 0 {
		close(all)
	}
	handler := func(ctx context.Context, task *dlock.Task) error {
		var payload struct {
			Fail  int
			SQL   string
			Again bool
			Wait  bool
		}
		if task.Payload != nil {
			if err := json.Unmarshal(task.Payload, &payload); err != nil {
				return err
			}
		}
		mu.Lock()
		if running[task.Key] {
			say(c.ID, "twice at a time", task.Key)
		}
		running[task.Key] = true
		if len(running) > most {
			most = len(running)
			if most == c.Options.Concurrency {
				close(all)
			}
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			delete(running, task.Key)
		}()
		if payload.Wait {
			say(c.ID, "works", task.Key, task.Attempts)
			select {
			case <-it.proceed:
			case <-ctx.Done():
				if task.Remaining() > 0 {
					say(c.ID, "stopped", "early")
				} else {
					say(c.ID, "stopped", "late")
				}
				return ctx.Err()
			}
		}
		<-all
		if task.Attempts <= payload.Fail {
			return errors.New("as told")
		}
		write := func() error {
			err := d.tx(ctx, task, func(run func(sql string) error, tx dlock.Execer) error { return run(payload.SQL) })
			if err != nil {
				say(c.ID, "not committed", outcome(err))
			}
			return err
		}
		if payload.SQL == "" {
			return nil
		}
		err := write()
		if err == nil && payload.Again {
			err = write()
		}
		return err
	}
	if c.Grace != nil {
		options = append(options, dlock.Grace(span(c.Grace)))
	}
	done := make(chan error, 1)
	go func() { done <- d.session.Work(ctx, c.Queue, handler, options...) }()
	<-it.end
	it.cancel()
	err := <-done
	return most, err
}

func main() {
	var err error
	if os.Args[1] == "pgx5" {
		d, err = openPgx5()
	} else {
		d, err = openSQL(os.Args[1], os.Args[2] == "own")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go beat()
	say("session", "is", d.session.Client())
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		c := &command{}
		if err := json.Unmarshal(input.Bytes(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if do := commands[c.Do]; do != nil {
			ctx, cancel := context.WithCancel(context.Background())
			mu.Lock()
			live[c.ID] = &thing{cancel: cancel, end: make(chan error, 9), proceed: make(chan bool, 9)}
			mu.Unlock()
			go func() {
				defer cancel()
				value, err := do(ctx, c)
				if err != nil {
					fmt.Fprintln(os.Stderr, c.ID, err)
					say(c.ID, "ended", outcome(err))
				} else if value == nil {
					say(c.ID, "ended", "ok")
				} else {
					say(c.ID, "ended", value)
				}
			}()
			continue
		}
		it := find(c.ID)
		switch c.Do {
		case "end":
			it.end <- nil
		case "fail":
			it.end <- errFail
		case "cancel":
			it.cancel()
		case "go":
			it.proceed <- true
		}
	}
	d.session.Close()
	d.close()
}
