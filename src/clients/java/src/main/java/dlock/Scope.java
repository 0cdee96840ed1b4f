package dlock;

import java.util.concurrent.atomic.AtomicLong;

/** The leases that a thread has acquired and not released yet, one within the other, and the task of a queue that it works on. */
final class Scope {
    private static final ThreadLocal<Scope> INNERMOST = new ThreadLocal<>();
    private static final AtomicLong TASKS = new AtomicLong();

    private final Hold hold;
    private final Scope outer;

    private Scope(Hold hold, Scope outer) {
        this.hold = hold;
        this.outer = outer;
    }

    /** The innermost one of this thread, or null. */
    private static Hold innermost() {
        Scope scope = INNERMOST.get();
        while (scope != null && scope.hold.isOver()) {
            scope = scope.outer;
        }
        if (scope == null) {
            INNERMOST.remove();
            return null;
        }
        INNERMOST.set(scope);
        return scope.hold;
    }

    /** The task of this thread, or a new one, which is none that a program numbers. */
    static String task() {
        return innermost() instanceof Lease lease ? lease.task() : "~" + TASKS.incrementAndGet();
    }

    static void enter(Hold hold) {
        Hold outer = innermost();
        INNERMOST.set(new Scope(hold, outer == null ? null : INNERMOST.get()));
    }

    /** Interrupt this thread again if what is around a lease that has ended is lost. */
    static void interruptAgain() {
        innermost();
        for (Scope scope = INNERMOST.get(); scope != null; scope = scope.outer) {
            if (scope.hold.isInterrupting()) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
