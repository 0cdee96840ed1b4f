package dlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// A Source makes connections for a session.
type Source interface {
	Connect(context.Context) (Conn, error)
}

// A Conn is a connection that a session has for itself.
type Conn interface {
	// Query runs a statement.  Its parameters are strings, or nil for NULL, and so are the values.  The context is that of the
	// connection: if it ends, a call should end, but need not.
	Query(ctx context.Context, query string, args ...any) ([][]*string, error)
	// Close ends the connection, whatever happens on it.
	Close()
}

// Direct is a Conn that prepares statements, unless there is a pooler.
type Direct interface {
	// Backend tells the pid of the server's process.
	Backend(pid string)
}

// What a pool must have room for: connections of the session, and one for the work.
const leastPool = 5

type sqlSource struct {
	db  *sql.DB
	own bool
}

func (s *sqlSource) Connect(ctx context.Context) (Conn, error) {
	pool := s.db.Stats()
	if most := pool.MaxOpenConnections; most > 0 && most < leastPool {
		return nil, failure(ErrUnsupported, nil, "a pool of %d has no room for a session: it must have %d, or use dlock.Open", most, leastPool)
	}

	// What lies in the pool may be broken.
	for tries := pool.Idle; ; tries-- {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		if err = conn.PingContext(ctx); err == nil {
			return sqlConn{conn, s.own}, nil
		}
		sqlConn{conn, s.own}.Close()
		if tries <= 0 || ctx.Err() != nil {
			return nil, err
		}
	}
}

func (s *sqlSource) close() {
	if s.own {
		s.db.Close()
	}
}

type sqlConn struct {
	conn *sql.Conn
	own  bool
}

// To end a call, drivers have a goroutine beside each.  Without one a call on a server that is silent lasts until the system ends
// its connection: it is in nobody's way, unless the pool is a program's.
func (c sqlConn) Query(ctx context.Context, query string, args ...any) ([][]*string, error) {
	if c.own && query != lookSQL { // a new connection may be that of a pooler without a server
		ctx = context.Background()
	}
	rows, err := c.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	var all [][]*string
	for err == nil && rows.Next() {
		row, places := make([]*string, len(columns)), make([]any, len(columns))
		for i := range row {
			places[i] = &row[i]
		}
		err = rows.Scan(places...)
		all = append(all, row)
	}
	if err == nil {
		err = rows.Err()
	}
	return all, err
}

// It has settings that are none of the pool's, so it does not go back there.
func (c sqlConn) Close() {
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.conn.Close()
}

// A Beginner is a *sql.DB or a *sql.Conn.
type Beginner interface {
	BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error)
}

// An Execer is a *sql.Tx, or another transaction; see ExecFunc.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// ExecFunc makes an Execer of a function that runs a statement, for transactions of other libraries.
type ExecFunc func(ctx context.Context, query string) error

// ExecContext runs the statement.
func (f ExecFunc) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if len(args) > 0 {
		return nil, errors.New("dlock: an ExecFunc takes no parameters")
	}
	return nil, f(ctx, query)
}

// Tx runs work in a transaction of the lease, or of the task.  It is rolled back if the work fails, or
// the lease ends before; then the context that the work has is cancelled.
func (h *hold) Tx(ctx context.Context, db Beginner, work func(context.Context, *sql.Tx) error) error {
	return h.Transact(ctx, func(ctx context.Context, enter, leave func(Execer) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err = enter(tx); err == nil {
			err = work(ctx, tx)
		}
		if err == nil {
			err = leave(tx)
		}
		if err != nil {
			return err
		}
		return tx.Commit()
	})
}
