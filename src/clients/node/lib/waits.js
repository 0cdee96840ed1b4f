'use strict';

// Waiting for locks, whatever the number of those who wait.  The loop of a request is in
// session.js: it asks, waits here for its turn, and asks again.
//
// By places, where the server has them: the request keeps its place in the queue of the lock, and one
// connection, there only while something waits, takes the turns of all.  After an outage, or
// if places may have run out as this process did not get to run, all ask again.
//
// Otherwise, and for paths and several locks at once, by asking again: all at the same moments, in
// one statement.  Those that want one lock alone ask one after the other.  The intervals grow, and
// end when a lease of this session has gone.

const { RELEASE } = require('./hold');
const { Lines, USUAL, ignore } = require('./lines');
const { now, timer, nap, interval } = require('./span');

const SHORTEST_MS = 10;
const LONGEST_MS = 500;

// How long a place is kept between calls, which is how long a program that dies holds others up;
// and how long a call waits, for it keeps a snapshot.
const KEEP_MS = 10000;
const TAKE_MS = 5000;
const IDLE_MS = 1000;

const TAKE = { rank: USUAL, within: TAKE_MS + 10000, text: ({ schema }) => `SELECT name, owner, token FROM ${schema}dlock_take($1, $2::interval, $3::interval)` };
class Waits {
  constructor(session) {
    this.session = session;
    this.queues = new Map(); // those that ask again: by name, or of one each
    this.timer = null;
    this.delay = SHORTEST_MS;
    this.arrivals = 0;
    this.places = new Map(); // lists of requests, by name and owner
    this.taker = null; // the connection that takes turns
  }

  // -------------------------------------------------------------- places

  // A place is about to be asked for: a turn may come before the answer.
  expect(want) {
    want.placed = true;
    want.got = null;
    const list = this.places.get(want.place);
    if (!list) {
      this.places.set(want.place, [want]);
    } else if (!list.includes(want)) {
      list.push(want);
    }
  }

  // It has no place any more.
  forget(want) {
    const list = want.placed && this.places.get(want.place);
    want.placed = false;
    if (list && list.includes(want)) {
      list.splice(list.indexOf(want), 1);
      if (list.length === 0) {
        this.places.delete(want.place);
      }
      if (this.places.size === 0 && this.taker) {
        this.taker.rest();
      }
    }
  }

  async take() {
    const taker = this.taker = new Lines(this.session.where, { only: true });
    let last = now();
    const rest = () => this.places.size === 0 && taker.drop();
    taker.rest = () => {
      taker.unref();
      setTimeout(rest, IDLE_MS).unref();
    };
    while (this.places.size > 0) {
      try {
        const { rows, sent } = await taker.ask(TAKE, [this.session.client, interval(TAKE_MS), interval(KEEP_MS)]);
        rows.forEach(([name, owner, token]) => this.taken(`${owner}\0${name}`, name, token, sent));
        if (sent - last > KEEP_MS / 2) {
          this.allAgain();
        }
      } catch (error) {
        await (this.places.size > 0 && nap(LONGEST_MS));
        this.allAgain();
      }
      last = now();
    }
    this.taker = null;
    await taker.close();
  }

  taken(place, name, token, sent) {
    const [want, ...others] = this.places.get(place) || [];
    if (want) {
      want.got = token === null ? 'never' : { token, sent };
      others.forEach((other) => this.end(other));
      this.end(want);
    } else if (token !== null) {
      this.session.lines.ask(RELEASE, [name, token]).catch(ignore);
    }
  }

  allAgain() {
    [...this.places.values()].flat().forEach((want) => this.end(want));
  }

  // -------------------------------------------------------------- both

  // Fulfilled with a grant, or null when it is time to ask again, or want.until has come.
  async turn(want) {
    await new Promise((resolve) => {
      want.go = resolve;
      if (want.got) {
        this.end(want);
        return;
      }
      want.timer = want.until < Infinity ? timer(() => this.end(want), want.until) : null;
      if (!want.placed) {
        this.enqueue(want);
      } else if (!this.taker) {
        this.take();
      } else {
        this.taker.ref();
      }
    });
    return want.got;
  }

  // It does not wait any longer.
  end(want) {
    const queue = this.queues.get(want.queue);
    if (queue && queue.includes(want)) {
      queue.splice(queue.indexOf(want), 1);
      if (queue.length === 0) {
        this.queues.delete(want.queue);
      }
    }
    clearTimeout(want.timer);
    if (want.go) {
      want.go();
    }
    if (this.queues.size === 0) {
      clearTimeout(this.timer);
      this.timer = null;
    }
  }

  // -------------------------------------------------------------- asking again

  enqueue(want) {
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
  }

  tick() {
    this.timer = null;
    this.delay = Math.min(this.delay * 2, LONGEST_MS);
    for (const queue of [...this.queues.values()]) {
      this.end(queue[0]);
    }
    if (this.queues.size > 0) {
      this.timer = this.timer || setTimeout(() => this.tick(), this.delay);
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

Waits.KEEP = interval(KEEP_MS);

module.exports = { Waits };
