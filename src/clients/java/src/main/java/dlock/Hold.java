package dlock;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;

/**
 * What is held for a time: a lease, or a task of a queue that was captured. The session renews it.
 *
 * <p>The deadline is counted from before a request was sent that the server has granted, so it is never
 * later than that of the server. The work is stopped when the server says that the lease is lost, and at
 * the latest "margin" before the deadline: its thread is interrupted, and the connections of its
 * transactions are ended.
 *
 * <p>All fields are protected by the session's mutex.
 */
public abstract sealed class Hold permits Lease, Task {
    /**
     * How often to renew, which is how a loss is learned of, and how long before its end a lease is given up
     * that was not renewed; both a sixth of the ttl if that is less.
     */
    private static final long RENEW_EVERY = TimeUnit.SECONDS.toNanos(2);
    private static final long STOP_BEFORE = TimeUnit.SECONDS.toNanos(5);

    final Session session;
    final Mutex mutex;
    final long every;
    final long margin;
    final String what;
    private final Lines.Kind renewal;
    private final List<Object[]> rows; // of a renewal
    private final Map<Connection, Future<?>> connections = new IdentityHashMap<>(); // of transactions; and what ends them
    private final long ttl;
    long deadline;
    private long renewAt;
    final boolean byHand; // renewed by the program, or not at all
    private int missing; // answers to a renewal
    private long oldest; // of these answers
    private Throwable failure; // the same
    private Throwable trouble; // why it was not renewed
    LeaseException error; // why it is not held any more
    private boolean over; // the work has ended
    boolean finished; // by a transaction, so that it cannot be lost
    int finishing; // transactions that finish it and commit: a renewal would wait for them, and then find nothing
    volatile Thread worker;
    private Runnable onLost;
    private boolean interrupted; // the worker, for that reason
    private FutureTask<?> told; // onLost, called once
    private volatile Thread teller; // calls it

    Hold(Session session, String what, Lines.Kind renewal, List<Object[]> rows, long ttl, boolean byHand, long sent) {
        this.session = session;
        mutex = session.mutex;
        this.what = what;
        this.renewal = renewal;
        this.rows = rows;
        this.ttl = ttl;
        this.byHand = byHand;
        every = Math.min(ttl / 6, RENEW_EVERY);
        margin = marginOf(ttl);
        deadline = sent + ttl;
        renewAt = sent + every;
    }

    static long marginOf(long ttl) {
        return Math.min(ttl / 6, STOP_BEFORE);
    }

    /** What a transaction begins with. */
    void enter(Connection connection) throws SQLException {
        // Nothing, if nothing else is said.
    }

    /** The end of a transaction. */
    void commit(Connection connection) throws SQLException {
        check();
        connection.commit();
    }

    /** Have it renewed; when it is lost, this thread is interrupted, if there is one, and this called. The mutex is held. */
    void begin(Thread thread, Runnable call) {
        worker = thread;
        onLost = call;
        session.keep(this);
    }

    // ---- what it is like ----

    /** Is the work to end, or has it ended? */
    public boolean isLost() {
        synchronized (mutex) {
            return over || reason() != null;
        }
    }

    /** How long it lasts, at least, if no renewal succeeds; the work ends earlier. */
    public Duration remaining() {
        synchronized (mutex) {
            return Duration.ofNanos(left());
        }
    }

    /** Throw why the work is to end, if it is, or has. */
    public void check() {
        synchronized (mutex) {
            if (reason() != null) {
                throw copyOf(error);
            } else if (over) {
                throw new LeaseLost(what + " is over, as the work has ended", null);
            }
        }
    }

    /** To be thrown here, where close() may throw the error itself: no exception can suppress itself. */
    private static LeaseException copyOf(LeaseException error) {
        return error instanceof ServerUnreachable ? new ServerUnreachable(error.getMessage(), error.getCause())
            : error instanceof SessionClosed ? new SessionClosed() : new LeaseLost(error.getMessage(), error.getCause());
    }

    /** Why it is not held any more, or null; the mutex is held. */
    LeaseException reason() {
        if (error == null && !over && Background.now() >= stopAt()) {
            if (byHand) {
                stop(new LeaseLost(what + " has expired", null));
            } else {
                String why = trouble == null ? "this process did not get to run" : trouble.getMessage();
                stop(new ServerUnreachable(what + " could not be renewed in time: " + why, trouble));
            }
        }
        return error;
    }

    long left() {
        return Math.max(deadline - Background.now(), 0);
    }

    boolean isOver() {
        synchronized (mutex) {
            return over;
        }
    }

    /** Has it interrupted this thread, which has not ended its work? */
    boolean isInterrupting() {
        synchronized (mutex) {
            return interrupted && !over && worker == Thread.currentThread();
        }
    }

    private long stopAt() {
        return byHand ? deadline : deadline - margin;
    }

    // ---- its end ----

    /** Stop the work, once; the mutex is held. */
    void stop(LeaseException why) {
        if (error != null || over || finished) {
            return;
        }
        error = why;
        session.forget(this);
        interrupt();
        endTransactions();
        if (onLost != null) {
            told = new FutureTask<>(() -> {
                teller = Thread.currentThread();
                try {
                    onLost.run();
                } catch (RuntimeException | Error failed) {
                    Background.log(System.Logger.Level.WARNING, "onLost has failed", failed);
                } finally {
                    teller = null;
                }
            }, null);
            try {
                Background.run(told);
            } catch (OutOfMemoryError none) {
                // Whoever ends the work tells.
            }
        }
    }

    /** Interrupt the work, unless it has ended; the mutex is held. */
    void interrupt() {
        if (worker != null && !over) {
            interrupted = true;
            worker.interrupt();
        }
    }

    /** No more work. Had it ended before? The mutex is held. */
    boolean end() {
        boolean late = reason() != null;
        over = true;
        session.forget(this);
        endTransactions();
        return late;
    }

    private void endTransactions() {
        connections.replaceAll((connection, end) -> end == null ? Background.runAnyhow(() -> Background.abort(connection)) : end);
    }

    /** Take back an interrupt of this thread. */
    void calm() {
        synchronized (mutex) {
            if (!interrupted || worker != Thread.currentThread()) {
                return;
            }
            interrupted = false;
        }
        Thread.interrupted();
        Scope.interruptAgain();
    }

    /** Is this called by onLost? */
    boolean isTeller() {
        return teller == Thread.currentThread();
    }

    /** Wait for onLost, unless it takes too long; call it, if no thread could be started for it. */
    void awaitTold(long within) {
        FutureTask<?> telling;
        synchronized (mutex) {
            telling = told;
        }
        if (telling != null) {
            telling.run();
            Background.patiently(telling, within);
        }
    }

    // ---- renewals ----

    /** When something is to be done; the mutex is held. */
    long next() {
        return missing > 0 || finishing > 0 ? stopAt() : Math.min(renewAt, stopAt());
    }

    /** Ask for a renewal if it is due by then; the mutex is held. */
    void renewBy(long moment) {
        if (missing > 0 || finishing > 0 || renewAt > moment) {
            return;
        }
        missing = rows.size();
        oldest = Background.FOREVER;
        failure = null;
        rows.forEach(row -> session.lines.submit(renewal, Lines.ANSWER_WITHIN, this::renewed, row));
    }

    /** For one of its locks. */
    private void renewed(Lines.Answer answer) {
        synchronized (mutex) {
            missing--;
            if (!answer.isGood()) {
                failure = answer.error();
            } else if (answer.isTrue()) {
                oldest = Math.min(oldest, answer.sent());
            } else if (finishing == 0) {
                stop(new LeaseLost(what + " is lost", null));
            }
            trouble = failure;
            if (missing > 0 || error != null || over || finished || finishing > 0) {
                return;
            }
            if (trouble == null) {
                renewAt = oldest + every;
                deadline = Math.max(deadline, oldest + ttl);
            } else {
                renewAt = Background.now() + every / 4;
            }
            session.troubled(trouble);
            session.arm(next());
        }
    }

    /** It was renewed by hand, to last until then; 0: it is lost. */
    void renewedByHand(long until) {
        synchronized (mutex) {
            deadline = until;
            if (until == 0) {
                stop(new LeaseLost(what + " is lost", null));
            }
        }
    }

    // ---- transactions ----

    /** Run work in a transaction, on a connection of the source's. */
    public <R, E extends Exception> R transaction(DataSource source, Work<Connection, R, E> work) throws E, SQLException {
        check();
        try (Connection connection = source.getConnection()) {
            return transaction(connection, work);
        }
    }

    /**
     * Run work in a transaction, on a connection that is not in one. That of a lease presents its tokens; that of a
     * task finishes it. It is rolled back if the work fails, or is stopped.
     *
     * @throws TokenStale a later holder has written
     * @throws LeaseLost the work was stopped, or has ended
     * @throws ServerUnreachable the same, for that reason
     */
    public <R, E extends Exception> R transaction(Connection connection, Work<Connection, R, E> work) throws E, SQLException {
        synchronized (mutex) {
            check();
            connections.put(connection, null);
        }
        try {
            return transact(connection, work);
        } catch (Exception failure) {
            LeaseException reason = explain(failure);
            if (reason != null) {
                throw reason;
            }
            throw failure;
        } finally {
            Future<?> end;
            synchronized (mutex) {
                end = connections.remove(connection);
            }

            // Not under the hands of who gets it from the pool next.
            if (end != null) {
                Background.patiently(end, STOP_BEFORE);
            }
        }
    }

    /** What a transaction has failed for, if it is more than what it says. */
    private LeaseException explain(Exception failure) {
        synchronized (mutex) {
            if (reason() != null) {
                LeaseException reason = copyOf(error);
                reason.addSuppressed(failure);
                return reason;
            }
        }
        return Lines.state(failure).startsWith("LK") ? Dlock.explain(failure).orElse(null) : null;
    }

    private <R, E extends Exception> R transact(Connection connection, Work<Connection, R, E> work) throws E, SQLException {
        boolean automatic = connection.getAutoCommit();
        connection.setAutoCommit(false);
        try {
            enter(connection);
            check();
            R result = work.run(connection);
            commit(connection);
            connection.setAutoCommit(automatic);
            return result;
        } catch (Throwable failure) {
            try {
                connection.rollback();
                connection.setAutoCommit(automatic);
            } catch (SQLException gone) {
                failure.addSuppressed(gone);
            }
            throw failure;
        }
    }
}
