package main

import (
	"context"

	"example.org/dlock"
	"example.org/dlock/pgx5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
)

func openPgx5() (*driver, error) {
	config, err := pgxpool.ParseConfig("sslmode=disable pool_max_conns=20")
	if err != nil {
		return nil, err
	}
	port := config.ConnConfig.Port
	config.ConnConfig.Port = 1
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.Port = port; return nil }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	within := func(work func(func(string) error, dlock.Execer) error) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			return work(func(query string) error { _, err := tx.Exec(ctx, query); return err }, pgx5.Exec(tx))
		}
	}
	return &driver{
		session: pgx5.Connect(pool, dlock.Log(trouble{})),
		query:   func(ctx context.Context, query string) error { _, err := pool.Exec(ctx, query); return err },
		tx: func(ctx context.Context, held dlock.Transactor, work func(func(string) error, dlock.Execer) error) error {
			return pgx5.Tx(ctx, held, pool, within(work))
		},
		begin: func(ctx context.Context, work func(func(string) error, dlock.Execer) error) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return within(work)(ctx, tx) })
		},
		close: pool.Close,
	}, nil
}
