package dlock

// Waiting for locks, whatever the number of those who wait.  The loop of a request is in
// acquire.go: it asks, waits here for its turn, and asks again.
//
// The request keeps its place in the queue of the lock, and one connection, there only while
// something waits, takes the turns of all.  After an outage all ask again; and from time to time, for
// places may go unseen: this process did not get to run, or a pooler has led to a server that was restarted.
//
// Paths and several locks at once have no place, and ask again in intervals that grow.

import (
	"context"
	"time"
)

const (
	shortestPoll = 10 * time.Millisecond
	longestPoll  = 500 * time.Millisecond
)

// How long a place is kept between calls, which is how long a program that dies holds others up;
// how long a call waits, for it keeps a snapshot; and after how long all ask again.  The call goes on when nothing waits any more:
// the turn of a request to come may be in its answer.
const (
	keepPlace = 10 * time.Second
	takeFor   = 5 * time.Second
	relyFor   = 30 * time.Second
)

var takeKind = &kind{rank: 1, text: "SELECT name, owner, token::text FROM @dlock_take($1, $2::interval, $3::interval)"}

// Wait for a turn, or until it is time to ask again.
func (s *Session) awaitTurn(ctx context.Context, w *want) {
	if !w.placed {
		s.nap(ctx, shorter(w.delay, w.left()), nil)
		w.delay = shorter(2*w.delay, longestPoll)
		return
	}
	s.mu.Lock()
	if s.taker == nil {
		s.taker = newLines(s.source, 1)
		go s.take(s.taker)
	}
	s.mu.Unlock()
	s.nap(ctx, w.left(), w.wake)
}

// Take turns, as long as there are places.
func (s *Session) take(taker *lines) {
	defer taker.close()
	for asked := time.Now(); ; {
		s.mu.Lock()
		if s.waiting == 0 {
			s.taker = nil
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		a := taker.ask(takeFor+answerWithin, takeKind, s.client, interval(takeFor), interval(keepPlace))
		s.mu.Lock()
		for _, row := range a.rows {
			s.taken(*row[0], *row[1], row[2], a.sent)
		}
		waits, failed := s.waiting > 0, a.err != nil
		s.mu.Unlock()
		if failed && waits {
			time.Sleep(longestPoll)
		}
		if failed || time.Since(asked) > s.relyFor {
			asked = time.Now()
			s.mu.Lock()
			for _, k := range s.stakes {
				for _, w := range k.places {
					w.inDoubt = w.inDoubt || failed
				}
				wakeUp(k.places)
			}
			s.mu.Unlock()
		}
	}
}

// A turn has come; the mutex is held.
func (s *Session) taken(name, owner string, token *string, sent time.Time) {
	if token == nil {
		token = new(string)
	}
	if k := s.stakes[stakeKey(owner, name)]; k != nil {
		if *token != "" && *token == k.told {
			return
		}
		for _, w := range k.places {
			if w.placed && w.got == nil {
				w.got = &turn{*token, sent}
				wakeUp(k.places)
				return
			}
		}
	}
	if *token != "" {
		s.decline(owner, name, *token)
	}
}

// Release a turn that was not taken; the mutex is held.
func (s *Session) decline(owner, name, token string) {
	l := &Lease{Owner: owner}
	l.s, l.rows = s, [][]any{{name, token}}
	s.busy++
	go func() {
		defer s.end()
		l.giveBack()
	}()
}

func wakeUp(list []*want) {
	for _, w := range list {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
