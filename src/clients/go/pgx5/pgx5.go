// Package pgx5 has sessions of dlock for pgx, version 5.
//
//	session := pgx5.Connect(pool)
//	err := session.Lease(ctx, "nightly-report", func(ctx context.Context, lease *dlock.Lease) error {
//		return pgx5.Tx(ctx, lease, pool, func(ctx context.Context, tx pgx.Tx) error { ... })
//	})
package pgx5

import (
	"context"
	"fmt"
	"time"

	"example.org/dlock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How long a connection may take to be closed, and how many statements it has prepared: there are not as many texts.
const (
	closeWithin  = 5 * time.Second
	mostPrepared = 50
)

// Connect returns the session of a pool.  It has the settings of the pool, with its BeforeConnect, and connections of its own.  Options
// count for the first call.
func Connect(pool *pgxpool.Pool, options ...dlock.SessionOption) *dlock.Session {
	config := pool.Config()
	return dlock.ConnectTo(pool, source{config.ConnConfig, config.BeforeConnect}, options...)
}

// Source makes connections by these settings, for dlock.ConnectTo.
func Source(config *pgx.ConnConfig) dlock.Source { return source{config, nil} }

type source struct {
	config *pgx.ConnConfig
	before func(context.Context, *pgx.ConnConfig) error // or nil
}

func (s source) Connect(ctx context.Context) (dlock.Conn, error) {
	config := s.config.Copy()
	if s.before != nil {
		if err := s.before(ctx, config); err != nil {
			return nil, err
		}
	}
	config.StatementCacheCapacity = mostPrepared
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}

	// A goroutine for the connection, instead of one for each statement.
	socket := c.PgConn().Conn()
	go func() {
		<-ctx.Done()
		socket.Close()
	}()
	return &conn{c, pgx.QueryExecModeExec}, nil
}

type conn struct {
	conn *pgx.Conn
	mode pgx.QueryExecMode
}

// Backend has statements prepared if the connection is to this process, and not to a pooler.
func (c *conn) Backend(pid string) {
	if pid == fmt.Sprint(c.conn.PgConn().PID()) {
		c.mode = pgx.QueryExecModeCacheStatement
	}
}

func (c *conn) Query(_ context.Context, query string, args ...any) ([][]*string, error) {
	rows, err := c.conn.Query(context.Background(), query, append([]any{c.mode}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all [][]*string
	for rows.Next() {
		row := make([]*string, len(rows.RawValues()))
		for i, value := range rows.RawValues() {
			if value != nil {
				text := string(value)
				row[i] = &text
			}
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func (c *conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = c.conn.Close(ctx)
}

// A Beginner is a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	Begin(context.Context) (pgx.Tx, error)
}

// An Execer is a pgx.Tx.
type Execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Exec makes a transaction of pgx one for Session.Present.
func Exec(tx Execer) dlock.Execer {
	return dlock.ExecFunc(func(ctx context.Context, query string) error {
		_, err := tx.Exec(ctx, query)
		return err
	})
}

// Tx runs work in a transaction of a lease, or of a task.  It is rolled back if the work fails, or the lease ends
// before; then the context that the work has is cancelled.
func Tx(ctx context.Context, lease dlock.Transactor, db Beginner, work func(context.Context, pgx.Tx) error) error {
	return lease.Transact(ctx, func(ctx context.Context, enter, leave func(dlock.Execer) error) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := enter(Exec(tx)); err != nil {
				return err
			}
			if err := work(ctx, tx); err != nil {
				return err
			}
			return leave(Exec(tx))
		})
	})
}
