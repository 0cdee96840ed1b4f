'use strict';

// Waiting for locks, whatever the number of those who wait.  The loop of a request is in
// session.js: it asks, waits here for its turn, and asks again.
//
// By places: the request keeps its place in the queue of the lock, and one connection, there only
// while something waits, takes the turns of all.  After an outage, or if places may have run out
// as this process did not get to run, all ask again.
//
// A path and several locks at once have no place: each asks again, at intervals that grow.

const { Lines, USUAL } = require('./lines');
const { now, timer, nap, interval } = require('./span');

const SHORTEST_MS = 10;
const LONGEST_MS = 500;

// How long a place is kept between calls, which is how long a program that dies holds others up;
// how long a call waits, for it keeps a snapshot; and how late an answer may be, or places may have run out.
const KEEP_MS = 10000;
const TAKE_MS = 5000;
const LATE_MS = 2000;

const TAKE = { rank: USUAL, within: TAKE_MS + 10000, text: ({ schema }) => `SELECT name, owner, token FROM ${schema}dlock_take($1, $2::interval, $3::interval)` };

class Waits {
  constructor(session) {
    this.session = session;
    this.places = new Map(); // lists of requests, by name and owner
    this.taker = null; // the connection that takes turns
    this.left = new Map(); // when a request for a place ended, for turns asked for before
  }

  // A place is about to be asked for: a turn may come before the answer.
  expect(want) {
    want.placed = true;
    const list = this.places.get(want.place);
    if (!list) {
      this.places.set(want.place, [want]);
    } else if (!list.includes(want)) {
      list.push(want);
    }
  }

  // It has no place any more.  A turn that it has not taken is given back.
  forget(want) {
    if (want.got && want.got !== 'never') {
      this.session._decline(want.names[0], want.got.token);
    }
    const list = want.placed && this.places.get(want.place);
    want.placed = false;
    if (list && list.includes(want)) {
      list.splice(list.indexOf(want), 1);
      if (this.taker) {
        this.left.set(want.place, now());
      }
      if (list.length === 0) {
        this.places.delete(want.place);
      }
      // What it asks goes on: the turn of a request to come may be in the answer.
      if (this.places.size === 0 && this.taker) {
        this.taker.ref('unref');
      }
    }
  }

  async take() {
    const taker = this.taker = new Lines(this.session.where, { only: true });
    while (this.places.size > 0) {
      const [at, wall] = [now(), Date.now()]; // the latter goes on while the machine is suspended
      try {
        const { rows, sent } = await taker.ask(TAKE, [this.session.client, interval(TAKE_MS), interval(KEEP_MS)]);
        rows.forEach(([name, owner, token]) => this.taken(`${owner}\0${name}`, name, token, sent));
        this.left.forEach((moment, place) => moment <= sent && this.left.delete(place));
        if (Math.max(now() - at, Date.now() - wall) > TAKE_MS + LATE_MS) {
          this.allAgain();
        }
      } catch (error) {
        await (this.places.size > 0 && nap(LONGEST_MS));
        this.allAgain();
      }
    }
    this.taker = null;
    taker.lines[0].close();
  }

  taken(place, name, token, sent) {
    const [want] = this.places.get(place) || [];
    if (want) {
      // If it may be the turn of one that has ended, and has been undone, it is to be confirmed.
      want.got = token === null ? 'never' : { token, sent: this.left.get(place) > sent ? -Infinity : sent };
      this.end(want);
    } else if (token !== null) {
      this.session._decline(name, token);
    }
  }

  allAgain() {
    [...this.places.values()].flat().forEach((want) => {
      want.inDoubt = true;
      this.end(want);
    });
  }

  // Fulfilled when its turn has come, or it is time to ask again.  It asked for a place when "sent" was.
  async turn(want, sent) {
    await new Promise((resolve) => {
      want.go = resolve;
      if (want.got || want.gone || want.inDoubt || (want.placed && now() - sent > LATE_MS)) {
        resolve();
        return;
      }
      want.delay = Math.min(2 * (want.delay || SHORTEST_MS / 2), LONGEST_MS);
      const until = want.placed ? want.until : Math.min(want.until, now() + want.delay);
      want.timer = until < Infinity ? timer(resolve, until) : null;
      if (want.placed && !this.taker) {
        this.take();
      } else if (want.placed) {
        this.taker.ref('ref');
      }
    });
    clearTimeout(want.timer);
  }

  // It does not wait any longer.
  end(want) {
    if (want.go) {
      want.go();
    }
  }

  close() {
    if (this.taker) {
      this.taker.lines[0].drop();
    }
  }
}

Waits.KEEP = interval(KEEP_MS);

module.exports = { Waits };
