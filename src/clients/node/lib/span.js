'use strict';

// Spans of time: numbers of milliseconds, or texts as PostgreSQL's settings take them.

const { performance } = require('perf_hooks');

const UNITS = { ms: 1, s: 1000, min: 60000, h: 3600000, d: 86400000 };

// A clock that does not step.  It stands still while the machine is suspended.
const now = () => performance.now();

// A span in milliseconds.
function span(value, name, least = 0) {
  const [, number, unit] = (typeof value === 'string' && /^\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)\s*$/.exec(value)) || [];
  const ms = unit ? number * UNITS[unit] : value;
  if (typeof ms !== 'number' || !(ms >= least && ms < Infinity)) {
    throw new TypeError(`${name} must be a number of milliseconds, or a text such as '30 s'`);
  }
  return ms;
}

// The same for the server.
const interval = (ms) => `${Math.round(ms * 1000)} microseconds`;

// The longest time that a timer takes.
const timer = (what, until) => setTimeout(what, Math.min(Math.max(until - now(), 0), 2 ** 31 - 1));

const nap = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

module.exports = { now, span, interval, timer, nap };
