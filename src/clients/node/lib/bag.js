'use strict';

// A set of objects that come and go by the thousand, each in at most one bag.  The tables of a Set
// refer to their successors, so that old ones keep what was in them until a full collection of
// garbage: of a lease that lasts no millisecond, that was a third of the cost.

class Bag {
  constructor() {
    this.items = [];
  }

  get size() {
    return this.items.length;
  }

  add(item) {
    item._at = this.items.push(item) - 1;
  }

  delete(item) {
    if (item._at >= 0) {
      const last = this.items.pop();
      if (last !== item) {
        this.items[item._at] = last;
        last._at = item._at;
      }
      item._at = -1;
    }
  }

  // Those that are in it now.
  [Symbol.iterator]() {
    return [...this.items].values();
  }
}

module.exports = { Bag };
