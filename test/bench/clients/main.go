// Leases a second that the tasks of one program in Go take and release, as main.js has it for Node:
//
//	main version PEER             the version of Go
//	main rate PEER KEY=VALUE...   tasks=8 seconds=2 hot=0
//
// PEER is go_session or go_connection.  The file driver.go, beside this one, has the driver "pgx".
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"example.org/dlock"
)

const (
	lead = 500 * time.Millisecond
	dsn  = "sslmode=disable"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// What a task does, again and again.
type pairs func(task int, name string, hot bool) func()

func sessionPairs() pairs {
	session, err := dlock.Open("pgx", dsn)
	check(err)
	return func(task int, name string, hot bool) func() {
		ctx := dlock.WithTask(context.Background(), "")
		wait := time.Duration(0)
		if hot {
			wait = dlock.Forever
		}
		return func() {
			check(session.Lease(ctx, name, func(context.Context, *dlock.Lease) error { return nil }, dlock.Wait(wait)))
		}
	}
}

func connectionPairs() pairs {
	ctx := context.Background()
	db, err := sql.Open("pgx", dsn)
	check(err)
	return func(task int, name string, hot bool) func() {
		conn, err := db.Conn(ctx)
		check(err)
		acquire, err := conn.PrepareContext(ctx, "SELECT dlock_acquire($1, $2, '60 s', $3::text::interval)")
		check(err)
		release, err := conn.PrepareContext(ctx, "SELECT dlock_release_token($1, $2)")
		check(err)
		wait := sql.NullString{String: "0", Valid: !hot}
		return func() {
			var token int64
			var held bool
			check(acquire.QueryRow(name, fmt.Sprint("task ", task), wait).Scan(&token))
			check(release.QueryRow(name, token).Scan(&held))
			if !held {
				log.Fatal(name, " was lost")
			}
		}
	}
}

func main() {
	if os.Args[1] == "version" {
		fmt.Println("dlock for Go", strings.TrimPrefix(runtime.Version(), "go"))
		return
	}
	settings := map[string]int{"tasks": 8, "seconds": 2}
	for _, word := range os.Args[3:] {
		parts := strings.Split(word, "=")
		var value int
		_, err := fmt.Sscan(parts[1], &value)
		check(err)
		settings[parts[0]] = value
	}
	of := sessionPairs
	if os.Args[2] == "go_connection" {
		of = connectionPairs
	}
	pairsOf, hot, tasks := of(), settings["hot"] == 1, settings["tasks"]
	work := make([]func(), tasks)
	for task := range work {
		name := fmt.Sprint("own:", task)
		if hot {
			name = "hot"
		}
		work[task] = pairsOf(task, name, hot)
	}

	from := time.Now().Add(lead)
	until := from.Add(time.Duration(settings["seconds"]) * time.Second)
	done := make([]int, tasks)
	var all sync.WaitGroup
	all.Add(tasks)
	for task := range work {
		go func(task int) {
			defer all.Done()
			for begun := time.Now(); begun.Before(until); {
				work[task]()
				ended := time.Now()
				if !begun.Before(from) && !ended.After(until) {
					done[task]++
				}
				begun = ended
			}
		}(task)
	}
	all.Wait()
	sum := 0
	for _, count := range done {
		sum += count
	}
	fmt.Printf("rate %v\n", float64(sum)/float64(settings["seconds"]))
}
