import dlock.Dlock;
import dlock.DlockLockProvider;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.postgresql.ds.PGSimpleDataSource;

/** What test/lib/DLockClient.pm has the Java client do: Client KEY=VALUE... */
public final class Client {
    private static final Map<String, String> ARGS = new HashMap<>();
    private static double least = Double.MAX_VALUE; // of what was left of the lease when there was work
    private static String how = "steady"; // or the machine stood still for a while
    private static volatile boolean threadless;

    /** A pool of a few connections. */
    private static final class Pool {
        private final DataSource source = server();
        private final ArrayDeque<Connection> idle = new ArrayDeque<>();
        private final Semaphore free;
        private final int size;
        private volatile boolean patient; // with who waits for a connection

        Pool(int size) {
            this.size = size;
            free = new Semaphore(size);
        }

        Connection take() throws SQLException {
            try {
                if (!free.tryAcquire(patient ? 3_600_000 : 100, TimeUnit.MILLISECONDS)) {
                    throw new SQLException("none of the " + size + " connections of the pool was free");
                }
            } catch (InterruptedException disturbed) {
                throw new SQLException(disturbed);
            }
            Connection real;
            synchronized (idle) {
                real = idle.poll();
            }
            try {
                return lend(real == null ? source.getConnection() : real);
            } catch (SQLException failed) {
                free.release();
                throw failed;
            }
        }

        private Connection lend(Connection real) {
            boolean[] returned = {false};
            return (Connection) Proxy.newProxyInstance(Client.class.getClassLoader(), new Class<?>[] {Connection.class},
                (proxy, method, args) -> {
                    if (method.getName().equals("close")) {
                        if (!returned[0]) {
                            returned[0] = true;
                            if (!real.isClosed()) {
                                synchronized (idle) {
                                    idle.push(real);
                                }
                            }
                            free.release();
                        }
                        return null;
                    }
                    try {
                        return method.invoke(real, args);
                    } catch (InvocationTargetException failed) {
                        throw failed.getCause();
                    }
                });
        }

        /** From now on it has no connection for anybody. */
        void exhaust() {
            patient = true;
            free.acquireUninterruptibly(size);
        }

        /** Until nobody waits for a connection. */
        void awaitNobody() {
            while (free.hasQueuedThreads()) {
                LockSupport.parkNanos(1_000_000);
            }
            say("nobody waits");
        }

        DataSource asSource() {
            return (DataSource) Proxy.newProxyInstance(Client.class.getClassLoader(), new Class<?>[] {DataSource.class},
                (proxy, method, args) -> take());
        }
    }

    private static PGSimpleDataSource server() {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(new String[] {"127.0.0.1"});
        source.setPortNumbers(new int[] {Integer.parseInt(System.getenv("PGPORT"))});
        source.setDatabaseName(System.getenv("PGDATABASE"));
        source.setUser(System.getenv("PGUSER"));
        return source;
    }

    private static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() > 0 ? " " : "").append(word);
        }
        System.out.println(line);
        System.out.flush();
    }

    private static boolean mayGo() {
        return Files.exists(Path.of(System.getenv("DLOCK_TEST_GO")));
    }

    private static void hold(Dlock.Lease lease) throws InterruptedException {
        long before = System.nanoTime();
        while (!mayGo()) {
            least = Math.min(least, lease.remaining().toNanos() / 1e6);
            if (System.nanoTime() - before > Long.parseLong(ARGS.get("ttl_ms")) * 1_000_000 / 12) {
                how = "stalled";
            }
            before = System.nanoTime();
            Thread.sleep(10);
        }
    }

    private static void write(Dlock.Lease lease, DataSource source) throws InterruptedException {
        while (!mayGo()) {
            Thread.sleep(10);
        }
        Dlock.Work work = connection -> {
            try (Statement statement = connection.createStatement()) {
                statement.execute(ARGS.get("sql"));
            }
        };
        try {
            if (ARGS.get("where").equals("connection")) {
                try (Connection connection = source.getConnection()) {
                    lease.transaction(connection, work);
                }
            } else {
                lease.transaction(source, work);
            }
            say("written");
        } catch (SQLException failed) {
            say("error", failed.getSQLState());
        }
    }

    /** What is under way when the lease ends, and what comes after it. */
    private static void outlast(Dlock.Lease lease, DataSource source) throws SQLException {
        try {
            lease.transaction(source, connection -> lease.close());
            say("committed");
        } catch (Dlock.LeaseLost over) {
            say("not committed");
        }
        try {
            lease.transaction(source, connection -> say("begun"));
        } catch (Dlock.LeaseLost over) {
            say(lease.isLost() ? "not begun" : "not lost");
        }
    }

    /** From now on the client's workers are gone, and the machine has no threads for others. */
    private static void takeThreads() {
        try {
            Field field = Dlock.class.getDeclaredField("WORKERS");
            field.setAccessible(true);
            ThreadPoolExecutor workers = (ThreadPoolExecutor) field.get(null);
            workers.setThreadFactory(task -> {
                throw new OutOfMemoryError("unable to create native thread");
            });
            workers.setKeepAliveTime(1, TimeUnit.NANOSECONDS);
            while (workers.getPoolSize() > 0) {
                LockSupport.parkNanos(1_000_000);
            }
            threadless = true;
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    /** Another lease, which ends sooner; without threads its onLost does not end. */
    private static void loseAnother(DataSource source) throws InterruptedException {
        Thread holder = new Thread(() -> {
            try {
                Dlock.lease(source, "another", Duration.ofMillis(Long.parseLong(ARGS.get("ttl_ms")) / 2)).onLost(lease -> {
                    while (threadless) {
                        LockSupport.parkNanos(10_000_000);
                    }
                }).acquire();
            } catch (InterruptedException | SQLException failed) {
                failed.printStackTrace();
            }
        });
        holder.start();
        holder.join();
    }

    private static void run() throws SQLException, InterruptedException {
        Pool pool = new Pool(ARGS.get("where").equals("pool") ? 1 : 5);
        DataSource source = pool.asSource();
        Semaphore closed = new Semaphore(0); // by onLost
        Dlock.Request request = Dlock.lease(source, ARGS.get("name"), Duration.ofMillis(Long.parseLong(ARGS.get("ttl_ms"))))
            .waitFor(Duration.ZERO).onLost(lease -> {
                say("on_lost");
                if (ARGS.get("do").equals("close")) {
                    try {
                        lease.close();
                        say("goes on");
                    } finally {
                        closed.release();
                    }
                }
            });
        if (ARGS.get("wait_ms").equals("none")) {
            request.waitForever();
        } else {
            request.waitFor(Duration.ofMillis(Long.parseLong(ARGS.get("wait_ms"))));
        }
        if (!ARGS.get("payload").equals("null")) {
            request.payload(ARGS.get("payload"));
        }
        if (ARGS.get("do").equals("giveup")) {
            Thread main = Thread.currentThread();
            Thread giver = new Thread(() -> {
                while (!mayGo()) {
                    try {
                        Thread.sleep(10);
                    } catch (InterruptedException disturbed) {
                        return;
                    }
                }
                main.interrupt();
            });
            giver.setDaemon(true);
            giver.start();
        }
        try (Dlock.Lease lease = request.acquire()) {
            Instant until = Instant.now().plus(lease.remaining());
            say("token", lease.token(), "until", until.getEpochSecond() + until.getNano() / 1e9);
            if (ARGS.get("do").equals("threadless")) {
                loseAnother(source);
                takeThreads();
            } else if (ARGS.get("do").equals("exhaust")) {
                pool.exhaust();
            }
            if (Set.of("hold", "threadless", "exhaust").contains(ARGS.get("do"))) {
                hold(lease);
            } else if (ARGS.get("do").equals("write")) {
                write(lease, source);
            } else if (ARGS.get("do").equals("close")) {
                closed.acquireUninterruptibly();
            } else if (ARGS.get("do").equals("outlast")) {
                outlast(lease, source);
            } else if (ARGS.get("do").equals("check")) {
                while (!mayGo()) {
                    lease.check();
                    LockSupport.parkNanos(10_000_000);
                }
            }
        } finally {
            if (ARGS.get("do").equals("exhaust")) {
                pool.awaitNobody();
            }
        }
    }

    private static Optional<SimpleLock> lock(LockProvider provider, int longest, int shortest) {
        return provider.lock(new LockConfiguration(Instant.now(), "shed", Duration.ofSeconds(longest), Duration.ofSeconds(shortest)));
    }

    private static void shedLock() {
        Pool pool = new Pool(5);
        LockProvider provider = new DlockLockProvider(pool.asSource());
        SimpleLock first = lock(provider, 600, 0).orElseThrow();
        say("held by another:", lock(provider, 600, 0).isEmpty());
        SimpleLock second = first.extend(Duration.ofSeconds(1200), Duration.ZERO).orElseThrow();
        try {
            first.unlock();
        } catch (IllegalStateException used) {
            say("used up");
        }
        pool.free.acquireUninterruptibly(pool.size);
        try {
            second.extend(Duration.ofSeconds(1200), Duration.ZERO);
        } catch (IllegalStateException unreachable) {
            say("not extended");
        }
        pool.free.release(pool.size);
        second.unlock();
        lock(provider, 600, 500).orElseThrow().unlock();
        say("held for a while:", lock(provider, 600, 0).isEmpty());
    }

    public static void main(String[] words) {
        ARGS.put("wait_ms", "0");
        ARGS.put("payload", "null");
        for (String word : words) {
            String[] parts = word.split("=", 2);
            ARGS.put(parts[0], parts[1]);
        }
        // A machine that is busy may take longer to load the driver than a request may take.
        try {
            server().getConnection().close();
        } catch (SQLException absent) {
            // Some tests have no server.
        }
        Throwable error = null;
        try {
            if (ARGS.get("do").equals("shedlock")) {
                shedLock();
            } else {
                run();
            }
            say("done");
            return;
        } catch (InterruptedException interrupted) {
            // What the lease has come to is told beside what the work has.
            error = interrupted.getSuppressed().length > 0 ? interrupted.getSuppressed()[0] : interrupted;
        } catch (Exception failed) {
            error = failed;
        }
        if (error instanceof Dlock.LeaseRefused) {
            say("refused");
        } else if (error instanceof Dlock.LeaseLost) {
            say("lost left", least, how);
        } else if (error instanceof Dlock.ServerUnreachable) {
            say("unreachable left", least, how);
        } else if (error instanceof InterruptedException) {
            say("gave up");
        } else {
            say("error", error instanceof SQLException ? ((SQLException) error).getSQLState() : error);
        }
        error.printStackTrace();
    }
}
