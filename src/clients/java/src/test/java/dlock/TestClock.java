package dlock;

import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.RunnableScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * The clock of the library in tests, and its timers. A thread moves it on by the time that it has slept, but not by that which it
 * had to wait for a processor after that: a stall of the machine is none of the library's time.
 */
final class TestClock extends ScheduledThreadPoolExecutor {
    private static final long STEP = TimeUnit.MILLISECONDS.toNanos(1);

    private final AtomicLong time = new AtomicLong();

    TestClock() {
        super(1);
        Background.clock = () -> time.addAndGet(1000); // it passes between two looks
        time.set(System.nanoTime()); // after the beginning of the library's time
        Thread ticks = new Thread(this::tick);
        ticks.setDaemon(true);
        ticks.start();
    }

    private void tick() {
        for (long last = System.nanoTime(); ; ) {
            LockSupport.parkNanos(STEP);
            long now = System.nanoTime();
            time.addAndGet(Math.min(now - last, 2 * STEP));
            last = now;
        }
    }

    private final class Timer<V> extends FutureTask<V> implements RunnableScheduledFuture<V> {
        private final long due;

        Timer(Runnable task, long due) {
            super(task, null);
            this.due = due;
        }

        @Override
        public boolean isPeriodic() {
            return false;
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(due - time.get(), TimeUnit.NANOSECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(due, ((Timer<?>) other).due);
        }

        @Override
        protected void done() {
            if (isCancelled()) {
                TestClock.this.remove(this);
            }
        }
    }

    @Override
    protected <V> RunnableScheduledFuture<V> decorateTask(Runnable task, RunnableScheduledFuture<V> usual) {
        return new Timer<>(task, time.get() + usual.getDelay(TimeUnit.NANOSECONDS));
    }
}
