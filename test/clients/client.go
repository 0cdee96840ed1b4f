// What test/lib/DLockClient.pm has the Go client do: client pgx|postgres KEY=VALUE...
package main

import (
	"context"
	"database/sql"
	"dlock"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v4/stdlib"
	_ "github.com/lib/pq"
)

var args = map[string]string{"wait_ms": "0", "payload": "null"}
var least time.Duration = -1 // of what was left of the lease when there was work
var how = "steady"           // or the machine stood still for a while
var asked = make(chan bool)  // closed when the work knows that the lease is lost
var errHalf = errors.New("half done")

func mayGo() bool {
	_, err := os.Stat(os.Getenv("DLOCK_TEST_GO"))
	return err == nil
}

func millis(text string) time.Duration {
	count, _ := strconv.Atoi(text)
	return time.Duration(count) * time.Millisecond
}

func hold(ctx context.Context, l *dlock.Lease) {
	for before := time.Now(); !mayGo() && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		left := l.Remaining()
		if least < 0 || left < least {
			least = left
		}
		if time.Since(before) > millis(args["ttl_ms"])/12 {
			how = "stalled"
		}
		before = time.Now()
	}
}

// Cancel the context, and work on until the lease has been renewed after that.
func linger(l *dlock.Lease, cancel func()) {
	cancel()
	for before := l.Remaining(); l.Remaining() <= before && !l.Lost(); time.Sleep(10 * time.Millisecond) {
		before = l.Remaining()
	}
}

// Ask at the moment when the lease is over.
func ask(l *dlock.Lease) {
	for l.Remaining() > millis(args["ttl_ms"])/6+20*time.Millisecond {
		time.Sleep(time.Millisecond)
	}
	for !l.Lost() {
	}
	close(asked)
}

func onLost(*dlock.Lease) {
	fmt.Println("on_lost")
	if args["do"] == "ask" {
		select {
		case <-asked:
			fmt.Println("the work goes on")
		case <-time.After(20 * time.Second):
			fmt.Println("the work waits")
		}
	}
}

// Begin a transaction that outlives the work.  What is returned tells what becomes of it, and of
// another.
func late(l *dlock.Lease, db dlock.Beginner) func() {
	begun := make(chan bool)
	ended := make(chan bool)
	committed := make(chan error)
	go func() {
		committed <- l.Tx(context.Background(), db, func(tx *sql.Tx) error {
			_, err := tx.Exec(args["sql"])
			close(begun)
			<-ended
			return err
		})
	}()
	<-begun
	return func() {
		close(ended)
		err := l.Tx(context.Background(), db, func(*sql.Tx) error { return nil })
		fmt.Println("lost", l.Lost(), errors.Is(<-committed, dlock.ErrLost), errors.Is(err, dlock.ErrLost))
	}
}

func write(ctx context.Context, l *dlock.Lease, db dlock.Beginner) {
	for !mayGo() {
		time.Sleep(10 * time.Millisecond)
	}
	err := l.Tx(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, args["sql"])
		return err
	})
	if err == nil {
		fmt.Println("written")
	} else {
		tellError(err)
	}
}

func tellError(err error) {
	var state interface{ SQLState() string }
	code := ""
	if errors.As(err, &state) {
		code = state.SQLState()
	}
	fmt.Println("error", code)
}

func run() error {
	db, err := sql.Open(os.Args[1], "sslmode=disable")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var begin dlock.Beginner = db
	switch args["where"] {
	case "pool":
		db.SetMaxOpenConns(1)
	case "connection":
		if begin, err = db.Conn(ctx); err != nil {
			return err
		}
	}
	if args["do"] == "giveup" {
		go func() {
			for !mayGo() {
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
		}()
	}
	wait := dlock.Wait(millis(args["wait_ms"]))
	if args["wait_ms"] == "none" {
		wait = dlock.WaitForever()
	}
	var payload any
	_ = json.Unmarshal([]byte(args["payload"]), &payload)
	after := func() {}
	defer func() { after() }()
	return dlock.Do(ctx, db, args["name"], millis(args["ttl_ms"]), func(ctx context.Context, l *dlock.Lease) error {
		until := time.Now().Add(l.Remaining())
		fmt.Printf("token %d until %.6f\n", l.Token, float64(until.UnixMicro())/1e6)
		switch args["do"] {
		case "hold":
			hold(ctx, l)
		case "linger":
			linger(l, cancel)
		case "write":
			write(ctx, l, begin)
		case "ask":
			ask(l)
		case "late":
			after = late(l, begin)
		case "fail":
			hold(ctx, l)
			return errHalf
		}
		return nil
	}, wait, dlock.Payload(payload), dlock.OnLost(onLost))
}

func main() {
	for _, word := range os.Args[2:] {
		key, value, _ := strings.Cut(word, "=")
		args[key] = value
	}
	err := run()
	if errors.Is(err, errHalf) {
		fmt.Println("failed")
	}
	left := float64(least) / float64(time.Millisecond)
	switch {
	case err == nil:
		fmt.Println("done")
		return
	case errors.Is(err, dlock.ErrRefused):
		fmt.Println("refused")
	case errors.Is(err, dlock.ErrLost):
		fmt.Println("lost left", left, how)
	case errors.Is(err, dlock.ErrUnreachable):
		fmt.Println("unreachable left", left, how)
	case errors.Is(err, context.Canceled):
		fmt.Println("gave up")
	default:
		tellError(err)
	}
	fmt.Fprintln(os.Stderr, err)
}
