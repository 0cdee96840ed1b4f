import dlock.Dlock;
import dlock.Lease;
import dlock.LeaseDeadlock;
import dlock.LeaseLost;
import dlock.LeaseRefused;
import dlock.ServerUnreachable;
import dlock.Session;
import dlock.SessionClosed;
import dlock.TokenMissing;
import dlock.TokenStale;
import dlock.shedlock.DlockLockProvider;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.postgresql.ds.PGSimpleDataSource;

/** What the library for Java does in troubles of its own process: Trouble TOPIC. */
final class Trouble {
    private interface Part {
        void run() throws Exception;
    }

    private static final Duration HOUR = Duration.ofHours(1);
    private static final Duration MINUTE = Duration.ofMinutes(1);

    /** Of a lease that is renewed every second, so that its loss is told soon. */
    private static final Duration BRIEF = Duration.ofSeconds(6);
    private static final PGSimpleDataSource SOURCE = Pool.server();
    private static final Session SESSION = Dlock.connect(SOURCE);
    private static final Logger LOGGER = Logger.getLogger("dlock");
    private static Connection other;

    private Trouble() {
    }

    // ---- helpers ----

    /** The first value of the answer, as text; null if there is none. */
    private static synchronized String sql(String query) throws SQLException {
        try (Statement statement = other.createStatement()) {
            if (!statement.execute(query)) {
                return null;
            }
            try (ResultSet result = statement.getResultSet()) {
                return result.next() ? result.getString(1) : null;
            }
        }
    }

    private static void expect(boolean good, Object what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    private static void waitUntil(BooleanSupplier condition) {
        long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(3);
        while (!condition.getAsBoolean()) {
            expect(System.nanoTime() < end, "timed out");
            LockSupport.parkNanos(5_000_000);
        }
    }

    private static boolean is(String query, String value) {
        try {
            return value.equals(sql(query));
        } catch (SQLException failed) {
            throw new AssertionError(failed);
        }
    }

    private static <E extends Throwable> E raises(Class<E> kind, Part part) {
        try {
            part.run();
        } catch (Throwable failed) {
            if (kind.isInstance(failed)) {
                return kind.cast(failed);
            }
            throw new AssertionError("not " + kind, failed);
        }
        throw new AssertionError("no " + kind);
    }

    private static void nothingLeft() throws SQLException {
        expect(is("SELECT (SELECT count(*) FROM dlock_leases) + (SELECT count(*) FROM dlock_waiters)", "0"), "something is left");
    }

    /** Have a thread do that; what comes of it. */
    private static CompletableFuture<Void> beside(Part part) {
        CompletableFuture<Void> end = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                part.run();
                end.complete(null);
            } catch (Throwable failed) {
                end.completeExceptionally(failed);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return end;
    }

    private static Void forceRelease(String name) throws SQLException {
        sql("SELECT dlock_force_release('" + name + "', 'test') FROM generate_series(1, 2)");
        return null;
    }

    // ---- topics ----

    /** What the work returns, or throws, comes to the caller. */
    private static void results() throws Exception {
        String owner = Dlock.run(SOURCE, "job", MINUTE, Lease::owner);
        expect(owner.startsWith(SESSION.client() + "#"), owner);
        expect(Dlock.run(SOURCE, "job", MINUTE, lease -> lease.transaction(SOURCE, connection -> 7)) == 7, "the result of a transaction");
        SQLException own = new SQLException("own");
        expect(raises(SQLException.class, () -> Dlock.run(SOURCE, "job", MINUTE, lease -> {
            throw own;
        })) == own, "an error of the work");
        nothingLeft();
    }

    /** A loss gets to the catch as that, whatever the work makes of the interrupt; and the interrupt does not outlast it. */
    private static void loss() throws Exception {
        LeaseLost lost = raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).run(lease -> {
            forceRelease("job");
            Thread.sleep(600_000);
            return null;
        }));
        expect(lost.getSuppressed()[0] instanceof InterruptedException, Arrays.toString(lost.getSuppressed()));
        expect(!Thread.currentThread().isInterrupted(), "interrupted after the work");

        // Work that looks, and keeps the interrupt.
        raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).run(lease -> {
            forceRelease("job");
            waitUntil(lease::isLost);
            waitUntil(() -> Thread.currentThread().isInterrupted());
            raises(LeaseLost.class, lease::check);
            return "too late";
        }));
        expect(!Thread.interrupted(), "interrupted after the work");

        // In a try statement it is suppressed by what the work throws.
        InterruptedException stopped = raises(InterruptedException.class, () -> {
            try (Lease lease = SESSION.lease("job").ttl(BRIEF).acquire()) {
                forceRelease(lease.name());
                Thread.sleep(600_000);
            }
        });
        expect(stopped.getSuppressed()[0] instanceof LeaseLost, Arrays.toString(stopped.getSuppressed()));
        expect(!Thread.interrupted(), "interrupted after the work");

        // An interrupt of the program's own is no loss.
        Thread own = Thread.currentThread();
        raises(InterruptedException.class, () -> SESSION.lease("job").run(lease -> {
            own.interrupt();
            Thread.sleep(600_000);
            return null;
        }));

        // If one within the other is lost, the outer work is not stopped; if both are, it is.
        SESSION.lease("outer").run(outer -> {
            raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).run(lease -> {
                forceRelease("job");
                Thread.sleep(600_000);
                return null;
            }));
            Thread.sleep(10);
            outer.check();
            return null;
        });
        raises(LeaseLost.class, () -> SESSION.lease("outer").ttl(BRIEF).run(outer -> {
            raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).run(lease -> {
                forceRelease("job");
                forceRelease("outer");
                waitUntil(() -> lease.isLost() && outer.isLost());
                return null;
            }));
            Thread.sleep(600_000);
            return null;
        }));
        nothingLeft();
    }

    /** What is not committed: after a loss, and after the end of the work; nor what a driver has refused. */
    private static void transactions() throws Exception {
        sql("CREATE TABLE written (x int PRIMARY KEY)");
        Lease ended = SESSION.lease("job").run(lease -> {
            raises(LeaseLost.class, () -> lease.transaction(SOURCE, connection -> {
                execute(connection, "INSERT INTO written VALUES (1)");
                lease.close();
                return null;
            }));
            return lease;
        });
        raises(LeaseLost.class, () -> ended.transaction(SOURCE, connection -> null));
        raises(LeaseLost.class, ended::check);
        expect(ended.isLost() && is("SELECT count(*) FROM written", "0"), "committed after the end");

        // A statement under way when it is lost ends.
        LeaseLost lost = raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).run(lease ->
            lease.transaction(SOURCE, connection -> {
                forceRelease("job");
                return execute(connection, "SELECT pg_sleep(3600)");
            })));
        expect(lost != null && !Thread.interrupted(), "interrupted after the work");
        sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(3600)'");

        // Settings of a connection are as they were.
        try (Connection connection = SOURCE.getConnection(); Lease lease = SESSION.lease("job").acquire()) {
            raises(SQLException.class, () -> lease.transaction(connection, own -> {
                execute(own, "INSERT INTO written VALUES (1)");
                return execute(own, "INSERT INTO written VALUES (1)");
            }));
            expect(connection.getAutoCommit(), "the connection is in a transaction");
            lease.transaction(connection, own -> execute(own, "INSERT INTO written VALUES (1)"));
            expect(connection.getAutoCommit() && is("SELECT count(*) FROM written", "1"), "not committed");
        }
        nothingLeft();
    }

    private static Void execute(Connection connection, String query) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(query);
        }
        return null;
    }

    /** onLost, which may call close(): the block tells why it has ended. */
    private static void tellers() throws Exception {
        CompletableFuture<Void> closed = new CompletableFuture<>();
        LeaseLost lost = raises(LeaseLost.class, () -> SESSION.lease("job").ttl(BRIEF).onLost(lease -> {
            lease.close();
            closed.complete(null);
        }).run(lease -> {
            forceRelease("job");
            closed.get();
            return null;
        }));
        expect(lost.getMessage().contains("is lost"), lost);
        expect(!Thread.interrupted(), "interrupted after the work");
    }

    /** The owner goes with the thread. */
    private static void owners() throws Exception {
        SESSION.lease("job").run(outer -> {
            LeaseRefused refused = raises(LeaseRefused.class, () -> SESSION.lease("job").acquire());
            expect(refused.holder().orElseThrow().equals(outer.owner()), refused);
            raises(LeaseDeadlock.class, () -> SESSION.lease("job").waitForever().acquire());
            try (Lease inner = SESSION.lease("job").reenter().acquire(); Lease another = SESSION.lease("another").acquire()) {
                expect(inner.owner().equals(outer.owner()) && another.owner().equals(outer.owner()), "the owner of a lease in another");
            }
            expect(is("SELECT holds FROM dlock_leases WHERE name = 'job'", "1"), "the lease that was entered twice");
            beside(() -> SESSION.lease("apart").run(lease -> {
                expect(!lease.owner().equals(outer.owner()), "another thread has the owner");
                return null;
            })).get();
            beside(() -> SESSION.lease("mine").task(outer.task()).run(lease -> {
                expect(lease.owner().equals(outer.owner()), "another thread has not got the owner");
                return null;
            })).get();
            return null;
        });
        try (Lease lease = SESSION.lease("job").task("mine").acquire()) {
            expect(lease.owner().equals(SESSION.client() + "#mine"), lease.owner());
        }

        // One that another thread releases, or that has no thread, is no longer around.
        Lease first = SESSION.lease("job").acquire();
        beside(first::close).get();
        Lease async = SESSION.lease("job").acquireAsync().get();
        try (Lease lease = SESSION.lease("another").acquire()) {
            expect(!lease.owner().equals(first.owner()) && !lease.owner().equals(async.owner()), "the owner of a lease that is over");
        }
        async.close();
        nothingLeft();
    }

    /** Between two programs: one of them is told, within some seconds. */
    private static void deadlock() throws Exception {
        List<String> outcomes = Collections.synchronizedList(new ArrayList<>());
        CyclicBarrier both = new CyclicBarrier(2);
        List<CompletableFuture<Void>> programs = new ArrayList<>();
        for (String[] names : new String[][] {{"a", "b"}, {"b", "a"}}) {
            programs.add(beside(() -> {
                try (Session own = Dlock.open(SOURCE, "program " + names[0])) {
                    own.lease(names[0]).run(lease -> {
                        both.await();
                        return own.lease(names[1]).waitFor(HOUR).run(inner -> outcomes.add("held"));
                    });
                } catch (LeaseDeadlock told) {
                    outcomes.add("deadlock");
                }
            }));
        }
        for (CompletableFuture<Void> program : programs) {
            program.get();
        }
        Collections.sort(outcomes);
        expect(outcomes.equals(List.of("deadlock", "held")), outcomes);
        nothingLeft();
    }

    /** Errors of the driver, also those that somebody has wrapped. */
    private static void errors() throws Exception {
        sql("CREATE TABLE guarded (x int)");
        sql("CREATE TRIGGER guard BEFORE INSERT ON guarded EXECUTE FUNCTION dlock_guard('job')");
        SQLException missing = raises(SQLException.class, () -> sql("INSERT INTO guarded VALUES (1)"));
        expect(Dlock.explain(new IllegalStateException(missing)).orElseThrow() instanceof TokenMissing, missing);
        expect(Dlock.explain(new IllegalStateException()).isEmpty(), "an error that is none of dlock's");
        Lease late = SESSION.lease("job").acquire();
        late.close();
        SESSION.lease("job").run(lease -> lease.transaction(SOURCE, connection -> execute(connection, "INSERT INTO guarded VALUES (2)")));
        try (Connection connection = SOURCE.getConnection(); Lease lease = SESSION.lease("other").acquire()) {
            raises(TokenMissing.class, () -> lease.transaction(connection, own -> execute(own, "INSERT INTO guarded VALUES (3)")));
            raises(TokenStale.class, () -> lease.transaction(connection, own ->
                execute(own, "SELECT dlock_fence('job', " + late.token() + ")")));
            raises(LeaseLost.class, () -> SESSION.present(connection, late));
        }
        expect(is("SELECT count(*) FROM guarded", "1"), "written without a token");
    }

    /** Whenever a request is given up, nothing is held afterwards. */
    private static void cancels() throws Exception {
        for (int i = 0; i < 300; i++) {
            Duration limit = i % 3 == 0 ? HOUR : Duration.ZERO;
            AtomicReference<Thread> waiter = new AtomicReference<>();
            CompletableFuture<Void> end = beside(() -> {
                waiter.set(Thread.currentThread());
                try {
                    SESSION.lease("job").waitFor(limit).acquire().close();
                } catch (InterruptedException | LeaseRefused givenUp) {
                    // As it was told, or as another one is just being released.
                }
            });
            waitUntil(() -> waiter.get() != null);
            LockSupport.parkNanos(i % 30 * 100_000);
            waiter.get().interrupt();
            end.get();
        }
        for (int i = 0; i < 100; i++) {
            CompletableFuture<Lease> lease = SESSION.lease("job").waitFor(i % 3 == 0 ? HOUR : Duration.ZERO).acquireAsync();
            LockSupport.parkNanos(i % 10 * 200_000);
            if (!lease.cancel(false) && !lease.isCompletedExceptionally()) {
                lease.get().close();
            }
        }
        waitUntil(() -> is("SELECT (SELECT count(*) FROM dlock_leases) + (SELECT count(*) FROM dlock_waiters)", "0"));
        SESSION.lease("job").run(lease -> null);
        nothingLeft();
    }

    /** Giving up is heard also while the server does not answer. */
    private static void silence() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
            PGSimpleDataSource source = Pool.server();
            source.setPortNumbers(new int[] {silent.getLocalPort()});
            Thread waiter = Thread.currentThread();
            beside(() -> {
                silent.accept();
                waiter.interrupt();
            });
            raises(InterruptedException.class, () -> Dlock.lease(source, "job", MINUTE).waitForever().acquire());
        }

        // Also by the thread that has made the statement itself, as there was a connection.
        Thread waiter = Thread.currentThread();
        String asleep = " FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        try (Session own = Dlock.open(SOURCE, "own")) {
            own.once("slot", HOUR);
            sql("ALTER FUNCTION dlock_acquire_each RENAME TO hidden");
            sql("CREATE FUNCTION dlock_acquire_each(names text[], owners text[], ttl interval, mode text, permits int, reentry text,"
                + " lock_delay interval, min_hold interval, keep interval) RETURNS bigint[] LANGUAGE sql"
                + " AS 'SELECT ARRAY[0::bigint] FROM pg_sleep(600)'");
            beside(() -> {
                waitUntil(() -> is("SELECT count(*)" + asleep, "1"));
                waiter.interrupt();
            });
            raises(InterruptedException.class, () -> own.lease("job").acquire());
            expect(is("SELECT now() - query_start < '8 s'" + asleep, "t"), "heard after the time for an answer");
            sql("SELECT pg_terminate_backend(pid, 60000)" + asleep);
            sql("DROP FUNCTION dlock_acquire_each");
            sql("ALTER FUNCTION hidden RENAME TO dlock_acquire_each");
        }
        forceRelease("once:slot");
        nothingLeft();
    }

    /** The end of a session is the end of what it does: of waits, elections, workers and leases, whose work is told. */
    private static void closing() throws Exception {
        sql("SELECT dlock_acquire('held', 'other', '1 h')");
        sql("SELECT dlock_queue_create('mail')");
        Session own = Dlock.open(SOURCE, "own");
        CompletableFuture<Void> waits = beside(() -> own.lease("held").waitForever().acquire());
        CompletableFuture<Lease> async = own.lease("held").waitForever().acquireAsync();
        CompletableFuture<Void> works = beside(() -> own.lease("job").run(lease -> {
            Thread.sleep(600_000);
            return null;
        }));
        Semaphore resigned = new Semaphore(0);
        own.elect(own.lease("boss"), lease -> {
            try {
                Thread.sleep(600_000);
            } finally {
                resigned.release();
            }
        });
        own.worker("mail", task -> task.state("sent"), 2).start();
        waitUntil(() -> is("SELECT (SELECT count(*) FROM dlock_leases) || ' ' || (SELECT count(*) FROM dlock_waiters)", "3 2"));
        own.close();
        expect(resigned.tryAcquire(), "the leader has not resigned");
        expect(cause(waits) instanceof SessionClosed, cause(waits));
        expect(cause(async) instanceof SessionClosed, cause(async));
        expect(cause(works) instanceof SessionClosed, cause(works));
        raises(SessionClosed.class, () -> own.lease("job").acquire());
        raises(SessionClosed.class, () -> own.once("job", HOUR));
        own.close();
        expect(is("SELECT string_agg(name, ' ') FROM dlock_leases", "held") && is("SELECT count(*) FROM dlock_waiters", "0"), "something is left");

        Session old = Dlock.connect(SOURCE);
        old.close();
        expect(Dlock.connect(SOURCE) != old, "a session that was closed");
        sql("SELECT dlock_release('held', 'other')");
        sql("SELECT dlock_queue_drop('mail')");
    }

    private static Throwable cause(CompletableFuture<?> end) throws Exception {
        return raises(ExecutionException.class, end::get).getCause();
    }

    /** Renewals that fail are logged, once, long before the lease is lost. */
    private static void told() throws Exception {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        LOGGER.addHandler(new Handler() {
            @Override
            public void publish(LogRecord entry) {
                lines.add(entry.getMessage() + ": " + entry.getThrown().getMessage());
            }

            @Override
            public void flush() {
                // Nothing is kept back.
            }

            @Override
            public void close() {
                // Nor is there anything to be closed.
            }
        });
        sql("CREATE FUNCTION answers() RETURNS boolean LANGUAGE sql AS 'SELECT 1 / 0 = 1'");
        sql("ALTER FUNCTION dlock_renew_each RENAME TO hidden");
        sql("CREATE FUNCTION dlock_renew_each(text[], bigint[]) RETURNS boolean[] LANGUAGE sql AS 'SELECT ARRAY[answers()]'");
        try (Lease lease = SESSION.lease("job").acquire()) {
            waitUntil(() -> !lines.isEmpty());
            Thread.sleep(1000);
            expect(lines.size() == 1 && lines.get(0).contains("division by zero"), lines);
            sql("DROP FUNCTION dlock_renew_each(text[], bigint[])");
            sql("ALTER FUNCTION hidden RENAME TO dlock_renew_each");
            Duration low = lease.remaining();
            waitUntil(() -> lease.remaining().compareTo(low) > 0);
            lease.check();
        }
        expect(lines.size() == 1, lines);
    }

    /**
     * A process that can start no thread still stops its work in time, and tells, whatever onLost of another lease
     * does.
     */
    private static void threadless() throws Exception {
        Class<?> background = Class.forName("dlock.Background");
        Field field = background.getDeclaredField("WORKERS");
        field.setAccessible(true);
        ThreadPoolExecutor workers = (ThreadPoolExecutor) field.get(null);
        AtomicInteger told = new AtomicInteger();
        AtomicBoolean threadless = new AtomicBoolean();
        Lease another = SESSION.lease("another").ttl(Duration.ofMillis(1500)).onLost(lease -> {
            while (threadless.get()) {
                LockSupport.park();
            }
        }).acquireAsync().get();
        raises(ServerUnreachable.class, () ->
            SESSION.lease("job").ttl(Duration.ofSeconds(3)).onLost(lease -> told.incrementAndGet()).run(lease -> {
                workers.setThreadFactory(task -> {
                    throw new OutOfMemoryError("unable to create native thread");
                });
                workers.setKeepAliveTime(1, TimeUnit.NANOSECONDS);
                waitUntil(() -> workers.getPoolSize() == 0);
                threadless.set(true);
                Thread.sleep(600_000);
                return null;
            }));
        expect(told.get() == 1 && another.isLost(), told);
    }

    /** Requests that find no connection keep no thread. */
    private static void exhaust() throws Exception {
        Pool pool = new Pool(5);
        Session own = Dlock.connect(pool);
        ServerUnreachable late = raises(ServerUnreachable.class, () -> own.lease("job").ttl(Duration.ofSeconds(6)).run(lease -> {
            pool.exhaust();
            sql("SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = 'dlock'");
            Thread.sleep(600_000);
            return null;
        }));
        expect(late.getMessage().contains("no connection was free"), late);
        waitUntil(() -> !pool.free.hasQueuedThreads());
        forceRelease("job");
    }

    private static void misuse() throws Exception {
        for (Duration span : new Duration[] {Duration.ZERO, Duration.ofNanos(999), Duration.ofSeconds(-1)}) {
            raises(IllegalArgumentException.class, () -> SESSION.lease("job").ttl(span));
        }
        raises(IllegalArgumentException.class, () -> SESSION.lease("job").waitFor(Duration.ofNanos(-1)));
        raises(IllegalArgumentException.class, () -> SESSION.lease("\ud800"));
        raises(IllegalArgumentException.class, () -> SESSION.leaseAll(List.of()));
        raises(NullPointerException.class, () -> SESSION.lease(null));
        raises(IllegalArgumentException.class, () -> Dlock.open(SOURCE, "a#b"));
        raises(IllegalArgumentException.class, () -> SESSION.worker("mail", task -> { }, 0));
        raises(IllegalArgumentException.class, () -> SESSION.watch("job", Duration.ZERO, holder -> { }));
        expect(raises(SQLException.class, () -> SESSION.lease("a\0b").acquire()).getSQLState() != null, "no SQLSTATE");
        SESSION.lease("job").waitFor(Duration.ofSeconds(Long.MAX_VALUE)).run(lease -> null);
        try (Lease lease = SESSION.lease("job").acquire()) {
            raises(IllegalStateException.class, () -> lease.renew(MINUTE));
        }

        // One that is renewed by hand ends by itself, and stops nothing.
        try (Lease lease = SESSION.lease("job").ttl(MINUTE).byHand().acquire()) {
            expect(lease.renew(HOUR) && lease.remaining().compareTo(MINUTE) > 0, lease.remaining());
            expect(lease.renew(Duration.ofMillis(1)), "not renewed");
            waitUntil(lease::isLost);
            expect(!lease.renew(HOUR), "renewed after its end");
            raises(LeaseLost.class, lease::close);
        }
        nothingLeft();
    }

    // ---- ShedLock, by the cases of its own tests ----

    private static LockConfiguration configuration(String name, Duration longest, Duration shortest) {
        return new LockConfiguration(Instant.now(), name, longest, shortest);
    }

    private static void expectLocked(LockProvider provider, String name, boolean locked) {
        Optional<SimpleLock> lock = provider.lock(configuration(name, MINUTE, Duration.ZERO));
        lock.ifPresent(SimpleLock::unlock);
        expect(lock.isEmpty() == locked, name + (locked ? " is not locked" : " is locked"));
    }

    private static void shedlock() throws Exception {
        LockProvider provider = new DlockLockProvider(SOURCE);

        // Locked, unlocked, and locked by somebody else at the same time.
        SimpleLock first = provider.lock(configuration("shed", HOUR, Duration.ZERO)).orElseThrow();
        expectLocked(provider, "shed", true);
        expectLocked(provider, "another", false);
        first.unlock();
        expectLocked(provider, "shed", false);

        // As long as it lasts at most, and not longer: a lock that is over at once is a lock.
        SimpleLock over = provider.lock(configuration("shed", Duration.ofMillis(1), Duration.ZERO)).orElseThrow();
        waitUntil(() -> is("SELECT count(*) FROM dlock_leases WHERE name = 'shed'", "0"));
        SimpleLock next = provider.lock(configuration("shed", HOUR, Duration.ZERO)).orElseThrow();
        over.unlock();
        expectLocked(provider, "shed", true);
        next.unlock();

        // As long as it lasts at least.
        provider.lock(configuration("least", HOUR, Duration.ofMinutes(30))).orElseThrow().unlock();
        expectLocked(provider, "least", true);
        expect(is("SELECT expires_at BETWEEN now() + '29 min' AND now() + '30 min' FROM dlock_leases WHERE name = 'least'", "t"), "lockAtLeastFor");
        provider.lock(configuration("brief", HOUR, Duration.ofMillis(5))).orElseThrow().unlock();
        waitUntil(() -> is("SELECT count(*) FROM dlock_leases WHERE name = 'brief'", "0"));
        expectLocked(provider, "brief", false);

        // Extended, with a least time of its own, that counts from then: longer, or none.
        SimpleLock lock = provider.lock(configuration("shed", Duration.ofMinutes(10), Duration.ZERO)).orElseThrow();
        SimpleLock extended = lock.extend(HOUR, Duration.ofMinutes(20)).orElseThrow();
        raises(IllegalStateException.class, lock::unlock);
        raises(IllegalStateException.class, () -> lock.extend(HOUR, Duration.ZERO));
        expect(is("SELECT expires_at > now() + '59 min' FROM dlock_leases WHERE name = 'shed'", "t"), "extended");
        extended.unlock();
        expect(is("SELECT expires_at BETWEEN now() + '19 min' AND now() + '20 min' FROM dlock_leases WHERE name = 'shed'", "t"),
            "the least time of an extension");
        raises(IllegalStateException.class, extended::unlock);
        forceRelease("shed");
        provider.lock(configuration("shed", HOUR, Duration.ofMinutes(20))).orElseThrow().extend(HOUR, Duration.ZERO).orElseThrow().unlock();
        expectLocked(provider, "shed", false);

        // Not once it is over.
        SimpleLock late = provider.lock(configuration("shed", Duration.ofMillis(1), Duration.ZERO)).orElseThrow();
        waitUntil(() -> is("SELECT count(*) FROM dlock_leases WHERE name = 'shed'", "0"));
        expect(late.extend(HOUR, Duration.ZERO).isEmpty(), "extended after its end");

        // Counters that are read and written under the lock.
        int[] counter = {0};
        AtomicInteger done = new AtomicInteger();
        List<CompletableFuture<Void>> threads = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            threads.add(beside(() -> {
                while (done.get() < 50) {
                    Optional<SimpleLock> mine = provider.lock(configuration("fuzz", MINUTE, Duration.ZERO));
                    if (mine.isPresent()) {
                        int before = counter[0];
                        Thread.yield();
                        counter[0] = before + 1;
                        done.incrementAndGet();
                        mine.get().unlock();
                    }
                }
            }));
        }
        for (CompletableFuture<Void> thread : threads) {
            thread.get();
        }
        expect(counter[0] == done.get(), counter[0] + " instead of " + done);
        forceRelease("least");

        // What the server does not answer is no answer.
        SimpleLock silent = provider.lock(configuration("shed", HOUR, Duration.ZERO)).orElseThrow();
        Dlock.connect(SOURCE).close();
        raises(IllegalStateException.class, () -> silent.extend(HOUR, Duration.ZERO));
        silent.unlock();
    }

    public static void main(String[] args) throws Exception {
        LOGGER.setUseParentHandlers(false);
        other = Pool.server().getConnection();
        Part part = switch (args[0]) {
            case "results" -> Trouble::results;
            case "loss" -> Trouble::loss;
            case "transactions" -> Trouble::transactions;
            case "tellers" -> Trouble::tellers;
            case "owners" -> Trouble::owners;
            case "deadlock" -> Trouble::deadlock;
            case "errors" -> Trouble::errors;
            case "cancels" -> Trouble::cancels;
            case "silence" -> Trouble::silence;
            case "closing" -> Trouble::closing;
            case "told" -> Trouble::told;
            case "threadless" -> Trouble::threadless;
            case "exhaust" -> Trouble::exhaust;
            case "misuse" -> Trouble::misuse;
            default -> Trouble::shedlock;
        };
        part.run();
        System.exit(0);
    }
}
