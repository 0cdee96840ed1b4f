-- acquire + release of one path, dlock
SELECT dlock_acquire_path('crowd/more', 'one more');
SELECT dlock_release('crowd/more', 'one more');
