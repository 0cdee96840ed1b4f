-- Run once, when the data directory is made.
CREATE EXTENSION dlock;
