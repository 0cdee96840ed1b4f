package dlock;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;

/**
 * Threads, and the clock that deadlines are counted by, of all sessions.
 *
 * <p>One thread, which is there from the beginning, sets timers off; what it calls must not block. It
 * stops the work in time also when no other thread can be started.
 */
final class Background {
    private static final System.Logger LOGGER = System.getLogger("dlock");

    /** A moment, or a span, that never ends. */
    static final long FOREVER = Long.MAX_VALUE;

    /** After no thread could be started. */
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(100);

    private static final long START = System.nanoTime();
    private static final ThreadFactory DAEMONS = task -> {
        Thread thread = new Thread(null, task, "dlock", 0, false);
        thread.setDaemon(true);
        return thread;
    };
    private static final ThreadPoolExecutor WORKERS =
        new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(), DAEMONS);
    private static final ThreadPoolExecutor LOGS =
        new ThreadPoolExecutor(0, 1, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(1000), DAEMONS, new ThreadPoolExecutor.DiscardPolicy());

    // Tests set others.
    static LongSupplier clock = System::nanoTime;
    static ScheduledThreadPoolExecutor timers = new ScheduledThreadPoolExecutor(1, DAEMONS);

    static {
        timers.setRemoveOnCancelPolicy(true);
        timers.prestartCoreThread();
    }

    private Background() {
    }

    /** Nanoseconds, never negative, of a clock that does not step. It stands still while the machine is suspended. */
    static long now() {
        return clock.getAsLong() - START;
    }

    /** The moment after such a span, which may be FOREVER. */
    static long after(long span) {
        return span == FOREVER ? FOREVER : now() + span;
    }

    /** A span in nanoseconds; one of centuries is FOREVER. */
    static long nanos(Duration span) {
        return span.compareTo(Duration.ofNanos(FOREVER / 2)) < 0 ? span.toNanos() : FOREVER;
    }

    /** A span for the server. */
    static String interval(long span) {
        return span / 1000 + " microseconds";
    }

    /** Run a task in another thread; throws OutOfMemoryError if none can be started. */
    static Future<?> run(Runnable task) {
        return WORKERS.submit(guarded(task));
    }

    /** Run a task, which may be the program's own, in another thread, as soon as one can be started. */
    static void runSoon(Runnable task) {
        try {
            run(task);
        } catch (OutOfMemoryError none) {
            at(after(RETRY_AFTER), () -> runSoon(task));
        }
    }

    /** Run a task in another thread, or in this one if no other can be started. */
    static Future<?> runAnyhow(Runnable task) {
        try {
            return run(task);
        } catch (OutOfMemoryError none) {
            guarded(task).run();
            return CompletableFuture.completedFuture(null);
        }
    }

    /** Run a task, which must not block, at a moment. */
    static ScheduledFuture<?> at(long moment, Runnable task) {
        return timers.schedule(guarded(task), moment - now(), TimeUnit.NANOSECONDS);
    }

    /** Calls at the earliest of the moments that it was given, and is given others then. */
    static final class Alarm {
        private final Runnable call;
        private long at = FOREVER;
        private Future<?> timer;

        Alarm(Runnable call) {
            this.call = call;
        }

        synchronized void set(long moment) {
            if (moment < at) {
                cancel(timer);
                timer = Background.at(moment, this::ring);
                at = moment;
            }
        }

        private void ring() {
            synchronized (this) {
                if (now() < at) {
                    return;
                }
                at = FOREVER;
            }
            call.run();
        }
    }

    /** Log what goes wrong, in a thread that is there for that: whatever a handler does, nothing else waits for it or fails. */
    static void log(System.Logger.Level level, String what, Throwable error) {
        try {
            LOGS.execute(() -> {
                try {
                    LOGGER.log(level, what, error);
                } catch (RuntimeException | Error failed) {
                    // Nobody can be told.
                }
            });
        } catch (OutOfMemoryError none) {
            // With the next one, or never.
        }
    }

    static void cancel(Future<?> task) {
        if (task != null) {
            task.cancel(false);
        }
    }

    private static Runnable guarded(Runnable task) {
        return () -> {
            try {
                task.run();
            } catch (RuntimeException | Error failed) {
                log(System.Logger.Level.ERROR, "a task in the background has failed", failed);
            }
        };
    }

    /** End a connection under its user's hands; the server rolls back. */
    static void abort(Connection connection) {
        try {
            connection.abort(Runnable::run);
        } catch (SQLException gone) {
            log(System.Logger.Level.DEBUG, "a connection could not be ended", gone);
        }
    }

    /** The result, in spite of interrupts; null if it does not come in time, or is an error. */
    static <T> T patiently(Future<T> result, long within) {
        long end = after(within);
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return result.get(end - now(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException again) {
                    interrupted = true;
                } catch (ExecutionException | TimeoutException none) {
                    return null;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Sleep, in spite of interrupts. */
    static void nap(long span) {
        patiently(new CompletableFuture<>(), span);
    }
}
