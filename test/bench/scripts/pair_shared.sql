-- acquire + release of one lock that others share, too, dlock
SELECT dlock_acquire('crowd', 'one more', mode => 'shared');
SELECT dlock_release('crowd', 'one more');
