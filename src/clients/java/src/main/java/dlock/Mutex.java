package dlock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;

/**
 * The mutex of a session. Threads that wait for what is decided while it is held are woken when it is free: they would
 * block on it at once, and have to be woken again.
 */
final class Mutex {
    private List<Thread> woken; // null: nobody collects them

    /** While a thread waits. */
    private final class Gate {
        private final Thread thread = Thread.currentThread();
        private volatile boolean open;

        void open() {
            open = true;
            if (Thread.holdsLock(Mutex.this) && woken != null) {
                woken.add(thread);
            } else {
                LockSupport.unpark(thread);
            }
        }
    }

    /** Run this with the mutex, which is not held before, and wake afterwards. */
    void run(Runnable task) {
        List<Thread> threads = new ArrayList<>();
        synchronized (this) {
            woken = threads;
            try {
                task.run();
            } finally {
                woken = null;
            }
        }
        threads.forEach(LockSupport::unpark);
    }

    /** Wait until that is complete. */
    void await(CompletableFuture<?> done) throws InterruptedException {
        Gate gate = new Gate();
        done.whenComplete((result, error) -> gate.open());
        while (!gate.open) {
            LockSupport.park(this);
            if (!gate.open && Thread.interrupted()) {
                throw new InterruptedException();
            }
        }
    }

    /** The same in spite of interrupts. */
    void awaitPatiently(CompletableFuture<?> done) {
        boolean interrupted = false;
        while (!done.isDone()) {
            try {
                await(done);
            } catch (InterruptedException again) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
