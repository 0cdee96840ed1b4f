package dlock;

import java.util.concurrent.atomic.AtomicLong;

/** The leases that a thread has acquired and not released yet, one within the other. */
final class Scope {
    private static final ThreadLocal<Scope> INNERMOST = new ThreadLocal<>();
    private static final AtomicLong TASKS = new AtomicLong();

    private final Lease lease;
    private final Scope outer;

    private Scope(Lease lease, Scope outer) {
        this.lease = lease;
        this.outer = outer;
    }

    /** The innermost lease of this thread, or null. */
    static Lease lease() {
        Scope scope = INNERMOST.get();
        while (scope != null && scope.lease.isOver()) {
            scope = scope.outer;
        }
        if (scope == null) {
            INNERMOST.remove();
            return null;
        }
        INNERMOST.set(scope);
        return scope.lease;
    }

    /** The task of this thread, or a new one. */
    static String task() {
        Lease lease = lease();
        return lease == null ? newTask() : lease.task();
    }

    static String newTask() {
        return Long.toString(TASKS.incrementAndGet());
    }

    static void enter(Lease lease) {
        Lease outer = lease();
        INNERMOST.set(new Scope(lease, outer == null ? null : INNERMOST.get()));
    }

    /** Interrupt this thread again if a lease around one that has ended is lost. */
    static void interruptAgain() {
        lease();
        for (Scope scope = INNERMOST.get(); scope != null; scope = scope.outer) {
            if (scope.lease.isInterrupting()) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
