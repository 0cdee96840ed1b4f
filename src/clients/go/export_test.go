package dlock

import "time"

// IdleWithin sets how long an unused connection stays open.
func (s *Session) IdleWithin(span time.Duration) { s.lines.idle = span }

// RelyFor sets after how long all that wait ask again.
func (s *Session) RelyFor(span time.Duration) { s.relyFor = span }

// Outlive ends a lease, or a task, as if no renewal had been heard of.
func (h *hold) Outlive() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.deadline = time.Now()
}

// Tick does what is due.
func (s *Session) Tick() { s.tick() }

// Pause keeps what needs the mutex from going on, until that is called.
func (s *Session) Pause() (goOn func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// Queued tells how many requests wait for a statement.
func (s *Session) Queued() (count int) {
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	for _, queue := range s.lines.queues {
		for _, r := range queue {
			if !r.gone {
				count++
			}
		}
	}
	return count
}
