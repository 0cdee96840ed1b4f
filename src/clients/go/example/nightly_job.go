// A nightly job: each of several machines starts it, and one of them does the work.
//
//	cd src/clients/go/example
//	go mod tidy
//	go build -o nightly_job
//	PGHOST=... ./nightly_job
//
// The table and its guard are those of doc/tutorial/nightly-job.md.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"example.org/dlock"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func makeReport(ctx context.Context) error {
	db, err := sql.Open("pgx", "")
	if err != nil {
		return err
	}
	defer db.Close()
	session, err := dlock.Open("pgx", "")
	if err != nil {
		return err
	}
	defer session.Close()

	// 1. The first machine of a day wins it.  The day is that of UTC.
	day, err := session.Once(ctx, "nightly-report", 24*time.Hour)
	if err != nil {
		return err
	}
	if day == 0 {
		return fmt.Errorf("another machine makes the report of this day: %w", dlock.ErrRefused)
	}

	// 2. Take the lock.  The last run may still hold it, so wait.  The session renews the lease.
	return session.Lease(ctx, "nightly-report", func(ctx context.Context, lease *dlock.Lease) error {
		lines := []string{fmt.Sprintf("made under token %d", lease.Token)}

		// 3. In long work, look often whether the lease is still held.
		if err := lease.Err(); err != nil {
			return err
		}

		// 4. Write in a transaction that presents the token.
		return lease.Tx(ctx, db, func(ctx context.Context, tx *sql.Tx) error {
			for _, line := range lines {
				if _, err := tx.ExecContext(ctx, "INSERT INTO report VALUES ($1)", line); err != nil {
					return err
				}
			}
			return nil
		})
	}, dlock.TTL(time.Minute), dlock.Wait(time.Hour))
}

func main() {
	if err := makeReport(context.Background()); errors.Is(err, dlock.ErrRefused) {
		log.Print(err)
		os.Exit(75)
	} else if err != nil {
		log.Fatal(err)
	}
}
