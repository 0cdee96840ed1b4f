package dlock

import (
	"context"
	"time"
)

// Shards are sessions with several servers, each of which has the locks that ShardOf gives it.  A server that is down refuses
// these, and no others.
type Shards []*Session

// OpenShards opens a session with each server, all of one client; see Open.  Name each server once, in one order
// everywhere.  For other pools, make Shards of their sessions.
func OpenShards(driver string, dataSources []string, options ...SessionOption) (Shards, error) {
	var shards Shards
	options = append([]SessionOption{Client(newClient())}, options...)
	for _, dataSource := range dataSources {
		session, err := Open(driver, dataSource, options...)
		if err != nil {
			_ = shards.Close()
			return nil, err
		}
		shards = append(shards, session)
	}
	return shards, nil
}

// Of returns the session that has the locks of this name: for several locks, or a path, that of what their names share.
func (s Shards) Of(name string) *Session { return ShardOf(name, s) }

// Lease is that of the session which has the lock, and so are the others.
func (s Shards) Lease(ctx context.Context, name string, work func(context.Context, *Lease) error, options ...Option) error {
	return s.Of(name).Lease(ctx, name, work, options...)
}

// Acquire returns a lease, to be released by the caller.
func (s Shards) Acquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return s.Of(name).Acquire(ctx, name, options...)
}

// AcquirePermit acquires one of so many permits.
func (s Shards) AcquirePermit(ctx context.Context, name string, permits int, options ...Option) (*Lease, error) {
	return s.Of(name).AcquirePermit(ctx, name, permits, options...)
}

// Once returns a token, if this is the first call in this time slot; or 0.
func (s Shards) Once(ctx context.Context, name string, every time.Duration) (int64, error) {
	return s.Of(name).Once(ctx, name, every)
}

// Elect campaigns until the context is done.
func (s Shards) Elect(ctx context.Context, name string, lead func(context.Context, *Lease) error, options ...Option) error {
	return s.Of(name).Elect(ctx, name, lead, options...)
}

// Watch tells the holder of a lock until the context is done.
func (s Shards) Watch(ctx context.Context, name string, every time.Duration, see func(*Holder) error) error {
	return s.Of(name).Watch(ctx, name, every, see)
}

// Close closes all sessions.
func (s Shards) Close() error {
	for _, session := range s {
		_ = session.Close()
	}
	return nil
}
