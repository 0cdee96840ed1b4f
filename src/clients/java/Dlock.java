package dlock;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import javax.sql.DataSource;

/**
 * Leases of dlock for Java, over JDBC.
 *
 * <pre>
 * try (Dlock.Lease lease = Dlock.lease(source, "nightly-report", Duration.ofMinutes(1)).acquire()) {
 *     lease.transaction(source, connection -> ...);
 * }
 * </pre>
 *
 * <p>The lease is renewed every two seconds. If it is lost, or could not be renewed until five
 * seconds before its end, the work is stopped: the thread that has acquired it is interrupted,
 * onLost is called, and transactions of the lease lose their connections. (With a ttl below 30
 * seconds, a sixth of it instead of five seconds; below 12, also instead of two.)
 *
 * <p>Each request takes a connection of the source for a moment, and waiting for a lock takes one
 * for as long as it lasts. Where the source is a pool of which the work may take all, give the
 * leases a source of their own.
 *
 * <p>Deadlines are counted from before a request is sent, by System.nanoTime(), which stands still
 * while the machine is suspended; the token is for that.
 */
public final class Dlock {
    /** Why there is no lease, or none any more. */
    public abstract static class LeaseException extends RuntimeException {
        LeaseException(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** Somebody else holds the lock. */
    public static final class LeaseRefused extends LeaseException {
        LeaseRefused(String message) {
            super(message, null);
        }
    }

    /** The server says that the lease is not held any more. */
    public static final class LeaseLost extends LeaseException {
        LeaseLost(String message) {
            super(message, null);
        }
    }

    /** The server could not be asked in time, or did not answer. */
    public static final class ServerUnreachable extends LeaseException {
        ServerUnreachable(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** Work in a transaction. */
    public interface Work {
        void run(Connection connection) throws SQLException;
    }

    // How often to renew, which is how a loss is learned of, and how long before its end a lease
    // is given up that was not renewed; both a sixth of the ttl if that is less.
    private static final long RENEW_EVERY = TimeUnit.SECONDS.toNanos(2);
    private static final long MARGIN = TimeUnit.SECONDS.toNanos(5);

    // How long a request, its connection included, may take; and what tidies up.
    private static final long ANSWER_WITHIN = TimeUnit.SECONDS.toNanos(10);
    private static final long UNDO_WITHIN = TimeUnit.SECONDS.toNanos(3);
    private static final long FOREVER = Long.MAX_VALUE;
    private static final long SHORT_NAP = TimeUnit.MILLISECONDS.toNanos(100);

    private static final String ACQUIRE =
        "SELECT dlock_acquire(name => ?, owner => ?, ttl => ?::interval, wait => ?::interval, mode => ?,"
        + " permits => ?::integer, reentry => 'return', lock_delay => ?::interval,"
        + " min_hold => ?::interval, payload => ?::jsonb)";
    private static final String RENEW = "SELECT dlock_renew_token(?, ?)";
    private static final String RENEW_FOR = "SELECT dlock_renew_token(?, ?, ?::interval)";
    private static final String RELEASE = "SELECT dlock_release_token(?, ?)";

    // By the owner, which no other request has. A wait under way ends first: NULL, to be asked again.
    private static final String UNDO =
        "SELECT CASE WHEN (SELECT count(pg_cancel_backend(pid)) FROM dlock_waiters WHERE owner = ?) = 0"
        + " THEN dlock_release(?, ?) END";

    // Add a pair to the setting, for this transaction.
    private static final String PRESENT =
        "SELECT set_config('dlock.tokens', CASE WHEN position(p || ',' IN t || ',') > 0 THEN t"
        + " WHEN t = '' THEN p ELSE t || ',' || p END, true)"
        + " FROM (SELECT coalesce(current_setting('dlock.tokens', true), '') AS t, ?::text AS p) AS now";

    private static final ThreadFactory DAEMONS = task -> {
        Thread thread = new Thread(task, "dlock");
        thread.setDaemon(true);
        return thread;
    };
    private static final ExecutorService WORKERS = Executors.newCachedThreadPool(DAEMONS);
    private static final ScheduledThreadPoolExecutor CLOCK = new ScheduledThreadPoolExecutor(1, DAEMONS);
    private static final SecureRandom RANDOM = new SecureRandom();

    static {
        CLOCK.setRemoveOnCancelPolicy(true);
    }

    private Dlock() {
    }

    /** A lease to be acquired, that lasts so long without a renewal. */
    public static Request lease(DataSource source, String name, Duration ttl) {
        return new Request(source, name, ttl);
    }

    /** What to ask for. */
    public static final class Request {
        private final DataSource source;
        private final String name;
        private final Duration ttl;
        private Duration limit = Duration.ZERO; // null: none
        private String who;
        private String mode = "exclusive";
        private Integer permits;
        private Duration lockDelay = Duration.ZERO;
        private Duration minHold = Duration.ZERO;
        private String payload;
        private Consumer<Lease> onLost = lease -> { };

        private Request(DataSource source, String name, Duration ttl) {
            this.source = source;
            this.name = name;
            this.ttl = ttl;
        }

        /** Wait so long for the lock; by default not at all. */
        public Request waitFor(Duration span) {
            limit = span;
            return this;
        }

        /** Wait for the lock until the thread is interrupted. */
        public Request waitForever() {
            limit = null;
            return this;
        }

        /** What to call the holder in dlock_leases; a random part is added. */
        public Request owner(String owner) {
            who = owner;
            return this;
        }

        /** The mode of the lock, as of dlock_acquire(); by default exclusive. */
        public Request mode(String name) {
            mode = name;
            return this;
        }

        /** Makes the lock a semaphore of so many holders. */
        public Request permits(int count) {
            permits = count;
            return this;
        }

        /** How long the lock stays closed after the lease was lost. */
        public Request lockDelay(Duration span) {
            lockDelay = span;
            return this;
        }

        /** A release takes effect no earlier than this after the grant. */
        public Request minHold(Duration span) {
            minHold = span;
            return this;
        }

        /** JSON that is shown in dlock_leases; null is none. */
        public Request payload(String json) {
            payload = json;
            return this;
        }

        /** Called, by a thread that has nothing else to do, when the work is to end. */
        public Request onLost(Consumer<Lease> call) {
            onLost = call;
            return this;
        }

        /**
         * Acquire it, and have it renewed until it is closed.
         *
         * @throws LeaseRefused somebody else holds the lock
         * @throws ServerUnreachable the server does not answer
         * @throws SQLException any other error of the server
         * @throws InterruptedException the thread was interrupted; nothing is held
         */
        public Lease acquire() throws SQLException, InterruptedException {
            Lease lease = new Lease(this);
            lease.acquire();
            try {
                lease.start();
            } catch (OutOfMemoryError none) {
                lease.close();
                throw none;
            }
            return lease;
        }

        /** Acquire it and leave it at that: it ends after the ttl, unless it is renewed by hand. */
        Lease acquireOnce() throws SQLException, InterruptedException {
            Lease lease = new Lease(this);
            lease.acquire();
            return lease;
        }
    }

    /** A statement under way, for whom wants to end it. */
    private static final class Call implements Callable<Object> {
        private final DataSource source;
        private final long within;
        private final String sql;
        private final Object[] values;
        private volatile boolean unwanted;
        private volatile boolean sent;
        private volatile Statement statement;
        private volatile Connection connection;

        Call(DataSource source, long within, String sql, Object... values) {
            this.source = source;
            this.within = within;
            this.sql = sql;
            this.values = values;
        }

        @Override
        public Object call() throws SQLException {
            try (Connection own = source.getConnection()) {
                connection = own;
                int timeout = own.getNetworkTimeout();
                boolean automatic = own.getAutoCommit();
                own.setAutoCommit(true);
                own.setNetworkTimeout(Runnable::run, (int) Math.min(milliseconds(), Integer.MAX_VALUE));
                try {
                    return ask(own);
                } finally {
                    connection = null;
                    if (!own.isClosed()) {
                        own.setNetworkTimeout(Runnable::run, timeout);
                        own.setAutoCommit(automatic);
                    }
                }
            }
        }

        private long milliseconds() {
            return within == FOREVER ? 0 : within / 1_000_000 + 1;
        }

        private Object ask(Connection own) throws SQLException {
            try (PreparedStatement asked = own.prepareStatement(sql)) {
                statement = asked;
                for (int i = 0; i < values.length; i++) {
                    // A string without a type is whatever the server wants it to be.
                    if (values[i] instanceof Long) {
                        asked.setLong(i + 1, (Long) values[i]);
                    } else {
                        asked.setObject(i + 1, values[i], Types.OTHER);
                    }
                }
                sent = true;
                if (unwanted) {
                    return null;
                }
                try (ResultSet result = asked.executeQuery()) {
                    return result.next() ? result.getObject(1) : null;
                }
            }
        }

        void cancel() {
            unwanted = true;
            inBackground(() -> {
                try {
                    if (statement != null) {
                        statement.cancel();
                    }
                } catch (SQLException error) {
                    // It may have ended.
                }
            });
        }

        private Future<Object> start() throws ExecutionException {
            try {
                return WORKERS.submit(this);
            } catch (OutOfMemoryError none) {
                throw new ExecutionException(none); // no thread is available
            }
        }

        /** The answer; a request that takes longer is given up. */
        Object answer(long limit) throws ExecutionException, InterruptedException, TimeoutException {
            Future<Object> answer = start();
            try {
                return answer.get(limit, TimeUnit.NANOSECONDS);
            } catch (InterruptedException | TimeoutException late) {
                cut(answer);
                throw late;
            }
        }

        /** The same, in spite of interrupts. */
        Object patiently(long limit) throws ExecutionException, TimeoutException {
            Future<Object> answer = start();
            try {
                return Dlock.patiently(answer, limit);
            } catch (TimeoutException late) {
                cut(answer);
                throw late;
            }
        }

        /** Give it up, be it sent or not; a thread that waits for a connection is interrupted. */
        void cut(Future<Object> answer) {
            unwanted = true;
            answer.cancel(true);
            Dlock.cut(connection);
        }

        /** May it have been done, though there is no answer but this? */
        boolean isUnheard(ExecutionException failed) {
            return sent && (!(failed.getCause() instanceof SQLException) || isBroken((SQLException) failed.getCause()));
        }
    }

    /** Run a task in another thread, or in this one if no thread can be started. */
    private static void inBackground(Runnable task) {
        try {
            WORKERS.execute(task);
        } catch (OutOfMemoryError none) {
            task.run();
        }
    }

    /** Take a connection away from the thread that uses it; the server rolls back. */
    private static void cut(Connection connection) {
        inBackground(() -> {
            try {
                if (connection != null) {
                    connection.abort(Dlock::inBackground);
                }
            } catch (SQLException error) {
                // It is closed.
            }
        });
    }

    /** The answer, in spite of interrupts. */
    private static Object patiently(Future<?> answer, long within) throws ExecutionException, TimeoutException {
        boolean disturbed = false;
        long end = System.nanoTime() + within;
        try {
            while (true) {
                try {
                    return answer.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException outer) {
                    disturbed = true;
                }
            }
        } finally {
            if (disturbed) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static void napShortly() {
        try {
            patiently(new CompletableFuture<>(), SHORT_NAP);
        } catch (ExecutionException | TimeoutException awake) {
            return;
        }
    }

    private static String interval(Duration span) {
        return span == null ? null : span.toNanos() / 1000 + " microseconds";
    }

    /** An owner of its own for each lease. */
    private static String makeOwner(String who) {
        String named = who;
        if (named == null) {
            String host = "localhost";
            try {
                host = InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException error) {
                // So it has none.
            }
            named = host + "/" + ProcessHandle.current().pid();
        }
        return named.substring(0, Math.min(named.length(), 50)) + "/" + Long.toHexString(RANDOM.nextLong());
    }

    private static boolean isBroken(SQLException error) {
        String state = error.getSQLState();
        return state == null || state.startsWith("08") || state.startsWith("57P");
    }

    /** Is this an error that says nothing about the lease? A standby can do nothing. */
    private static boolean isOutage(SQLException error) {
        return isBroken(error) || error.getSQLState().equals("25006");
    }

    /** A lease that is held. */
    public static final class Lease implements AutoCloseable {
        private final Request request;
        private final String owner;
        private final long ttl;
        private final long renewEvery;
        private final long margin;
        private final Thread worker = Thread.currentThread();
        private final Set<Connection> connections = new HashSet<>(); // of transactions
        private long token;
        private long deadline;
        private Throwable trouble;
        private boolean asking; // for a renewal
        private LeaseException error; // why there is no lease any more
        private boolean interrupted; // the worker, for that reason
        private boolean finishing;
        private boolean kept; // it is renewed in the background
        private ScheduledFuture<?> watch;
        private FutureTask<?> told; // onLost, called once
        private Thread teller; // calls it

        private Lease(Request request) {
            this.request = request;
            owner = makeOwner(request.who);
            ttl = request.ttl.toNanos();
            renewEvery = Math.min(ttl / 6, RENEW_EVERY);
            margin = Math.min(ttl / 6, MARGIN);
        }

        public String name() {
            return request.name;
        }

        public String owner() {
            return owner;
        }

        /** The fencing token. */
        public long token() {
            return token;
        }

        /** Is the work to end, or has it ended? */
        public synchronized boolean isLost() {
            if (error == null && left() > margin) {
                return finishing;
            }
            stop(late());
            return true;
        }

        /** How long the lease lasts, at least, if no renewal succeeds; the work ends earlier. */
        public synchronized Duration remaining() {
            return Duration.ofNanos(Math.max(left(), 0));
        }

        /**
         * Throw what close() would throw, if the work is to end; and LeaseLost once it is called. It is
         * an exception of its own: close() throws too, and no exception can suppress itself.
         */
        public synchronized void check() {
            if (isLost() && error instanceof ServerUnreachable) {
                throw new ServerUnreachable(error.getMessage(), error.getCause());
            } else if (error != null || finishing) {
                throw new LeaseLost(error == null ? "the lease on \"" + name() + "\" is over, as the work has ended"
                    : error.getMessage());
            }
        }

        /** Run work in a transaction that presents the token. */
        public void transaction(DataSource source, Work work) throws SQLException {
            try (Connection connection = source.getConnection()) {
                transaction(connection, work);
            }
        }

        /** The same on a connection that is not in a transaction. */
        public void transaction(Connection connection, Work work) throws SQLException {
            synchronized (this) {
                connections.add(connection);
            }
            try {
                check();
                boolean automatic = connection.getAutoCommit();
                connection.setAutoCommit(false);
                try {
                    present(connection);
                    work.run(connection);
                    check();
                    connection.commit();
                } catch (Throwable failure) {
                    try {
                        connection.rollback();
                        connection.setAutoCommit(automatic);
                    } catch (SQLException gone) {
                        failure.addSuppressed(gone);
                    }
                    throw failure;
                }
                connection.setAutoCommit(automatic);
            } finally {
                synchronized (this) {
                    connections.remove(connection);
                }
            }
        }

        private void present(Connection connection) throws SQLException {
            try (PreparedStatement statement = connection.prepareStatement(PRESENT)) {
                statement.setString(1, "\"" + name().replace("\"", "\"\"") + "\"=" + token);
                statement.executeQuery().close();
            }
        }

        /**
         * Release it: the work has ended. What the work throws comes first; what this would throw
         * is then among the suppressed exceptions of that. Called by onLost, it does nothing: the work
         * has not ended.
         *
         * @throws LeaseLost the lease was lost before
         * @throws ServerUnreachable it could not be renewed in time
         */
        @Override
        public void close() {
            boolean mine;
            Future<?> telling;
            synchronized (this) {
                if (finishing || (Thread.currentThread() == teller && !told.isDone())) {
                    return;
                }
                finishing = true;
                telling = told;
                mine = interrupted && Thread.currentThread() == worker;
                if (watch != null) {
                    watch.cancel(false);
                }
                notifyAll();
            }
            if (mine) {
                Thread.interrupted();
            }
            if (telling != null) {
                try {
                    patiently(telling, UNDO_WITHIN);
                } catch (ExecutionException | TimeoutException failed) {
                    error().addSuppressed(failed);
                }
            }
            Boolean held = giveBack(token);
            synchronized (this) {
                if (error == null && (held == null ? kept && left() <= 0 : !held)) {
                    error = new LeaseLost("the lease on \"" + name() + "\" was lost before the work had ended");
                }
            }
            if (error() != null) {
                throw error();
            }
        }

        /** Renew it now, by hand, for so long from now on: is it held? */
        boolean renew(Duration span) throws SQLException {
            return Boolean.TRUE.equals(new Call(request.source, ANSWER_WITHIN, RENEW_FOR, name(), token, interval(span)).call());
        }

        // ---- before the work ----

        private void acquire() throws SQLException, InterruptedException {
            long limit = request.limit == null ? FOREVER : request.limit.toNanos() + ANSWER_WITHIN;
            Object[] values = {name(), owner, interval(request.ttl), interval(request.limit), request.mode,
                request.permits == null ? null : request.permits.toString(), interval(request.lockDelay),
                interval(request.minHold), request.payload};
            Call call = new Call(request.source, limit, ACQUIRE, values);
            long sent = System.nanoTime();
            Future<Object> answer = WORKERS.submit(call);
            Object granted;
            try {
                granted = answer.get(limit, TimeUnit.NANOSECONDS);
            } catch (InterruptedException givenUp) {
                giveUp(call, answer);
                throw givenUp;
            } catch (TimeoutException late) {
                giveUp(call, answer);
                throw new ServerUnreachable("the server does not answer", late);
            } catch (ExecutionException failed) {
                if (call.isUnheard(failed)) {
                    undo();
                }
                throw explain(failed);
            }
            if (granted == null) {
                throw new LeaseRefused("lock \"" + name() + "\" was not acquired");
            }
            token = (Long) granted;

            // A grant that was waited for may be old; a renewal tells when it was held.
            if (System.nanoTime() - sent > renewEvery / 2) {
                sent = System.nanoTime();
                if (!renewOnce()) {
                    throw new LeaseLost("the lease on \"" + name() + "\" was lost at once");
                }
            }
            deadline = sent + ttl;
        }

        private boolean renewOnce() throws SQLException, InterruptedException {
            try {
                return Boolean.TRUE.equals(new Call(request.source, margin, RENEW, name(), token).answer(ANSWER_WITHIN));
            } catch (TimeoutException late) {
                giveBack(token);
                throw new ServerUnreachable("the server does not answer", late);
            } catch (ExecutionException failed) {
                giveBack(token);
                throw explain(failed);
            } catch (InterruptedException givenUp) {
                giveBack(token);
                throw givenUp;
            }
        }

        /** An error of the server, to be thrown; one of the way to it is thrown as what it is. */
        private static SQLException explain(ExecutionException failed) {
            if (failed.getCause() instanceof SQLException && !isOutage((SQLException) failed.getCause())) {
                return (SQLException) failed.getCause();
            }
            throw new ServerUnreachable(failed.getCause().getMessage(), failed.getCause());
        }

        /** Cancel a request, and give back what it was granted all the same. */
        private void giveUp(Call call, Future<Object> answer) {
            long end = System.nanoTime() + UNDO_WITHIN;
            while (end - System.nanoTime() > 0) {
                // One that comes before the server has begun with the statement is in vain.
                call.cancel();
                try {
                    Object granted = patiently(answer, SHORT_NAP);
                    if (granted != null) {
                        giveBack((Long) granted);
                    }
                    return;
                } catch (TimeoutException late) {
                    continue;
                } catch (ExecutionException failed) {
                    if (failed.getCause() instanceof SQLException && !isOutage((SQLException) failed.getCause())) {
                        return;
                    }
                    break;
                }
            }
            call.cut(answer);
            undo();
        }

        /** There was no answer to the request: leave behind neither a lease nor a wait for one. */
        private void undo() {
            long end = System.nanoTime() + UNDO_WITHIN;
            while (end - System.nanoTime() > 0) {
                long within = end - System.nanoTime();
                Call call = new Call(request.source, within, UNDO, owner, name(), owner);
                try {
                    if (call.patiently(within) != null) {
                        return;
                    }
                } catch (ExecutionException | TimeoutException failed) {
                    // Once more.
                }
                napShortly();
            }
        }

        // ---- during the work ----

        private void start() {
            kept = true;
            Thread keeper = DAEMONS.newThread(() -> {
                keep();
                tell();
            });
            keeper.setName("dlock " + name());
            keeper.start();
            watch();
        }

        private long left() {
            return deadline - System.nanoTime();
        }

        private synchronized LeaseException error() {
            return error;
        }

        private synchronized ServerUnreachable late() {
            String why = asking ? "the server does not answer, or no connection was free"
                : "this process did not get to run";
            return new ServerUnreachable("the lease on \"" + name() + "\" could not be renewed in time: "
                + (trouble == null ? why : trouble.getMessage()), trouble);
        }

        /** Stop the work when it is time to; until then come back. */
        private synchronized void watch() {
            long until = left() - margin;
            if (until <= 0) {
                stop(late());
            } else if (!finishing && error == null) {
                watch = CLOCK.schedule(this::watch, until, TimeUnit.NANOSECONDS);
            }
        }

        /** Sleep until then; false if the work has ended. */
        private synchronized boolean nap(long until) {
            while (!finishing && error == null) {
                long span = until - System.nanoTime();
                if (span <= 0) {
                    return true;
                }
                try {
                    TimeUnit.NANOSECONDS.timedWait(this, span);
                } catch (InterruptedException nobody) {
                    return false;
                }
            }
            return false;
        }

        /** Renew until the work has ended, or there is nothing to be kept. */
        private void keep() {
            long next = deadline - ttl + renewEvery;
            while (nap(next)) {
                long sent = System.nanoTime();
                synchronized (this) {
                    asking = true;
                }
                try {
                    if (!Boolean.TRUE.equals(new Call(request.source, margin, RENEW, name(), token).answer(margin))) {
                        stop(new LeaseLost("the lease on \"" + name() + "\" is lost"));
                        return;
                    }
                    synchronized (this) {
                        deadline = sent + ttl;
                        trouble = null;
                        asking = false;
                    }
                    next = sent + renewEvery;
                } catch (InterruptedException nobody) {
                    return;
                } catch (ExecutionException | TimeoutException failed) {
                    synchronized (this) {
                        trouble = failed.getCause();
                    }
                    next = System.nanoTime() + renewEvery / 4;
                }
            }
        }

        /** Call onLost, unless there was a thread that does or the work has ended by itself. */
        private void tell() {
            FutureTask<?> telling;
            synchronized (this) {
                telling = told;
            }
            if (telling != null) {
                telling.run();
            }
        }

        /** Stop the work, once. */
        private void stop(LeaseException reason) {
            FutureTask<?> telling = new FutureTask<>(() -> {
                teller = Thread.currentThread();
                request.onLost.accept(this);
            }, null);
            synchronized (this) {
                if (error != null || finishing) {
                    return;
                }
                error = reason;
                told = telling;
                if (kept) {
                    interrupted = true;
                    worker.interrupt();
                }
                notifyAll();
                connections.forEach(Dlock::cut);
            }
            try {
                WORKERS.execute(telling);
            } catch (OutOfMemoryError none) {
                // The thread that renews tells, as it ends. This one may have other leases to stop.
            }
        }

        // ---- after the work ----

        /**
         * Release it: was it held? Null if the server does not say. A request that was sent, and not
         * answered, may have released it.
         */
        private Boolean giveBack(long granted) {
            long end = System.nanoTime() + UNDO_WITHIN;
            boolean inDoubt = false;
            while (end - System.nanoTime() > 0) {
                long within = end - System.nanoTime();
                Call call = new Call(request.source, within, RELEASE, name(), granted);
                try {
                    Object held = call.patiently(within);
                    return inDoubt && Boolean.FALSE.equals(held) ? null : (Boolean) held;
                } catch (ExecutionException failed) {
                    inDoubt |= call.isUnheard(failed);
                } catch (TimeoutException late) {
                    return null;
                }
                napShortly();
            }
            return null;
        }
    }
}
