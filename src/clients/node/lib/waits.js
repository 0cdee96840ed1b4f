'use strict';

// Waiting for locks, whatever the number of those who wait.
//
// A request that waits is asked for again by its own loop, see session.js; here it waits for the
// moment to do so.  All ask at the same moments, so that it is one statement.  Those that
// want one lock alone ask one after the other.  The intervals grow, and end when a lease
// of this session has gone.

const { timer } = require('./span');

const SHORTEST_MS = 10;
const LONGEST_MS = 500;

class Waits {
  constructor() {
    this.queues = new Map(); // by name, or of one each
    this.timer = null;
    this.delay = SHORTEST_MS;
    this.arrivals = 0;
  }

  // Fulfilled when it is time to ask again, or want.until has come.
  turn(want) {
    want.arrival = want.arrival || ++this.arrivals;
    want.queue = want.alone ? want.label : want;
    const queue = this.queues.get(want.queue) || [];
    this.queues.set(want.queue, queue);

    // It may be the first one again.
    const later = queue.findIndex((other) => other.arrival > want.arrival);
    queue.splice(later < 0 ? queue.length : later, 0, want);
    if (want.arrival === this.arrivals) {
      this.delay = SHORTEST_MS;
    }
    this.timer = this.timer || setTimeout(() => this.tick(), this.delay);
    return new Promise((resolve) => {
      want.go = resolve;
      want.timer = want.until < Infinity ? timer(() => this.end(want), want.until) : null;
    });
  }

  // It does not wait any longer.
  end(want) {
    const queue = this.queues.get(want.queue);
    const at = queue ? queue.indexOf(want) : -1;
    if (at >= 0) {
      queue.splice(at, 1);
      if (queue.length === 0) {
        this.queues.delete(want.queue);
      }
      clearTimeout(want.timer);
      want.go();
    }
    if (this.queues.size === 0) {
      clearTimeout(this.timer);
      this.timer = null;
    }
  }

  tick() {
    this.timer = null;
    this.delay = Math.min(this.delay * 2, LONGEST_MS);
    for (const queue of [...this.queues.values()]) {
      this.end(queue[0]);
    }
    if (this.queues.size > 0) {
      this.timer = setTimeout(() => this.tick(), this.delay);
    }
  }

  // A lease of this session on the lock has ended.
  released(name) {
    const queue = this.queues.get(name);
    if (queue) {
      this.end(queue[0]);
    }
  }
}

module.exports = { Waits };
