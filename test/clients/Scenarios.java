import dlock.Dlock;
import dlock.Election;
import dlock.Hold;
import dlock.Lease;
import dlock.LeaseException;
import dlock.LeaseRefused;
import dlock.Request;
import dlock.Session;
import dlock.Shards;
import dlock.Task;
import dlock.Watch;
import dlock.Work;
import dlock.Worker;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.stream.IntStream;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * A program of test/lib/DLockScenario.pm in Java: reads commands, a line of JSON each, and prints what comes of
 * them, "ID EVENT...". Its arguments are "plain", a source that makes connections, or "pool", and settings of the driver.
 */
final class Scenarios {
    /** Something that goes on until it is told to end. */
    private static final class Thing {
        private final BlockingQueue<String> end = new LinkedBlockingQueue<>();
        private final Semaphore go = new Semaphore(0);
        private volatile Lease lease;
        private volatile Thread thread;
    }

    private interface Command {
        Object run(Thing thing) throws Exception;
    }

    private interface Part {
        void run(int i) throws Exception;
    }

    private static final class AsTold extends Exception {
        private static final long serialVersionUID = 1L;

        AsTold(String message) {
            super(message);
        }
    }

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, Thing> THINGS = new ConcurrentHashMap<>();
    private static final AtomicLong STALL = new AtomicLong(); // the longest time that this process did not run
    private static DataSource source;
    private static Session session;

    private Scenarios() {
    }

    private static void say(String id, Object... words) {
        StringBuilder line = new StringBuilder(id);
        for (Object word : words) {
            line.append(' ').append(word);
        }
        synchronized (OUT) {
            OUT.println(line);
        }
    }

    private static Thread start(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void beat() {
        long last = System.nanoTime();
        while (true) {
            try {
                Thread.sleep(20);
            } catch (InterruptedException nobody) {
                return;
            }
            long now = System.nanoTime();
            long lag = (now - last) / 1_000_000;
            STALL.accumulateAndGet(lag, Math::max);
            last = now;
        }
    }

    /** Spans are milliseconds, or texts. */
    private static Duration span(Object value) {
        if (value instanceof Number number) {
            return Duration.ofMillis(number.longValue());
        }
        String[] parts = ((String) value).split(" ");
        ChronoUnit unit = Map.of("s", ChronoUnit.SECONDS, "min", ChronoUnit.MINUTES, "h", ChronoUnit.HOURS, "d", ChronoUnit.DAYS).get(parts[1]);
        return Duration.of(Long.parseLong(parts[0]), unit);
    }

    private static String outcome(Throwable error) {
        if (error instanceof LeaseRefused refused) {
            String holder = refused.holder().orElse("");
            return "refused " + (holder.startsWith(session.client()) ? "self" : holder);
        } else if (error instanceof LeaseException) {
            return error.getClass().getSimpleName();
        } else if (error instanceof InterruptedException) {
            return "gave up";
        } else if (error instanceof SQLException failed) {
            return "error " + failed.getSQLState();
        }
        return "error " + error.getMessage();
    }

    private static Request set(Request request, Json options) {
        if (options.has("ttl")) {
            request.ttl(span(options.get("ttl")));
        }
        if (options.has("wait")) {
            request.waitFor(span(options.get("wait")));
        }
        if (options.has("mode")) {
            request.mode(options.text("mode"));
        }
        if (options.has("reentry")) {
            request.reenter();
        }
        if (options.has("payload")) {
            request.payload(Json.write(options.get("payload")));
        }
        return request;
    }

    private static Request request(Json command) {
        Json options = command.object("options");
        Request request = command.has("names") ? session.leaseAll(command.texts("names"))
            : command.has("path") ? session.leasePath(command.text("path"))
            : options.has("permits") ? session.semaphore(command.text("name"), options.number("permits"))
            : session.lease(command.text("name"));
        if (command.has("in")) {
            request.task(THINGS.get(command.text("in")).lease.task());
        }
        return set(request, options);
    }

    /** At once; throws the first error. */
    private static void all(int count, Part part) throws Exception {
        List<CompletableFuture<Void>> ends = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            CompletableFuture<Void> end = new CompletableFuture<>();
            ends.add(end);
            start(() -> {
                try {
                    part.run(number);
                    end.complete(null);
                } catch (Exception failed) {
                    end.completeExceptionally(failed);
                }
            });
        }
        for (CompletableFuture<Void> end : ends) {
            await(end);
        }
    }

    private static <T> T await(CompletableFuture<T> result) throws Exception {
        try {
            return result.get();
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception error ? error : failed;
        }
    }

    private static Void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
        return null;
    }

    // ---- commands ----

    /** A lease, until it is told to end, or to fail; in the task of another one. */
    private static Object lease(Json command, Thing thing) throws Exception {
        return request(command).run(lease -> {
            STALL.set(0);
            thing.lease = lease;
            say(command.text("id"), "held", lease.token());
            try {
                if (thing.end.take().equals("fail")) {
                    throw new AsTold("failed");
                }
            } catch (InterruptedException stopped) {
                say(command.text("id"), "stopped", how(lease));
                throw stopped;
            }
            return null;
        });
    }

    private static String end(Lease lease) {
        try {
            lease.check();
            return "ok";
        } catch (LeaseException over) {
            return outcome(over);
        }
    }

    private static String how(Hold held) {
        return !held.remaining().isZero() ? "early" : STALL.get() > 300 ? "stalled" : "late";
    }

    /** So many leases at once: held together, or one after the other on one lock, or on some. No thread waits for them. */
    private static Object many(Json command, Thing thing) throws Exception {
        int count = command.number("count");
        List<CompletableFuture<Lease>> leases = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String name = command.has("names") ? command.text("name") + ":" + i % command.number("names")
                : command.has("name") ? command.text("name") : command.text("id") + ":" + i;
            leases.add(set(session.lease(name), command.object("options")).acquireAsync());
        }
        if (!command.has("hold")) {
            for (CompletableFuture<Void> end : leases.stream().map(lease -> lease.thenAccept(Lease::close)).toList()) {
                await(end);
            }
            return null;
        }
        for (CompletableFuture<Lease> lease : leases) {
            await(lease);
        }
        say(command.text("id"), "held", count);
        thing.end.take();
        all(count, i -> await(leases.get(i)).close());
        return null;
    }

    /** Each name as a lease of its own, at once: what comes of each. */
    private static Object each(Json command, Function<String, Request> ask) throws Exception {
        List<String> names = command.texts("names");
        String[] results = new String[names.size()];
        all(results.length, i -> {
            try {
                set(ask.apply(names.get(i)), command.object("options")).run(lease -> null);
                results[i] = "ok";
            } catch (Exception failed) {
                failed.printStackTrace();
                results[i] = outcome(failed);
            }
        });
        return String.join(", ", results);
    }

    /** The same, of two servers of which one is down. */
    private static Object shards(Json command) throws Exception {
        PGSimpleDataSource none = new PGSimpleDataSource();
        none.setPortNumbers(new int[] {1});
        List<DataSource> sources = new ArrayList<>(List.of(source, source));
        sources.set(command.number("down"), none);
        try (Shards shards = Dlock.openShards(sources)) {
            return each(command, shards::lease);
        }
    }

    /** Which of so many servers has each of the locks. */
    private static Object shard(Json command) {
        List<Integer> servers = IntStream.range(0, command.number("count")).boxed().toList();
        return String.join(", ", command.texts("names").stream().map(name -> Dlock.shardOf(name, servers).toString()).toList());
    }

    private static Object close() {
        session.close();
        return null;
    }

    /** Workflows, so many at a time, each with some leases, one within the other, and work in the pool. */
    private static Object load(Json command) throws Exception {
        AtomicInteger next = new AtomicInteger();
        int workflows = command.number("workflows");
        all(command.number("concurrency"), worker -> {
            for (int i = next.getAndIncrement(); i < workflows; i = next.getAndIncrement()) {
                flow(command, i, 0);
            }
        });
        return workflows;
    }

    private static Void flow(Json command, int i, int depth) throws Exception {
        if (depth == command.number("locks")) {
            try (Connection connection = source.getConnection()) {
                return execute(connection, command.text("query"));
            }
        }
        String name = "load:" + depth + ":" + (i * 7 + depth) % command.number("names");
        return session.lease(name).waitFor(Duration.ofMinutes(2)).run(lease -> flow(command, i, depth + 1));
    }

    private static Object elect(Json command, Thing thing) throws Exception {
        String id = command.text("id");
        Election election = session.elect(set(session.lease(command.text("name")), command.object("options")), lease -> {
            say(id, "gained");
            try {
                Thread.sleep(Long.MAX_VALUE);
            } finally {
                say(id, "resigned", end(lease));
            }
        });
        thing.end.take();
        election.close();
        return null;
    }

    private static Object watch(Json command, Thing thing) throws Exception {
        Watch watch = session.watch(command.text("name"), Duration.ofMillis(50), holder ->
            say(command.text("id"), "sees", holder.isEmpty() ? "nobody" : holder.get().owner()));
        thing.end.take();
        watch.close();
        return null;
    }

    /** A task fails if its payload says so, writes if its payload says what, or waits to be told. */
    private static Object worker(Json command, Thing thing) throws Exception {
        Set<String> running = new HashSet<>();
        AtomicInteger most = new AtomicInteger();
        Json options = command.object("options");
        int concurrency = options.has("concurrency") ? options.number("concurrency") : 1;

        // The first tasks go on as soon as so many are there.
        CountDownLatch all = new CountDownLatch(concurrency);
        Worker worker = session.worker(command.text("queue"), task -> {
            synchronized (running) {
                if (!running.add(task.key())) {
                    say(command.text("id"), "twice at a time", task.key());
                }
                most.accumulateAndGet(running.size(), Math::max);
            }
            all.countDown();
            try {
                all.await();
                handle(command.text("id"), thing, task);
            } finally {
                synchronized (running) {
                    running.remove(task.key());
                }
            }
        }, concurrency);
        if (options.has("ttl")) {
            worker.ttl(span(options.get("ttl")));
        }
        worker.start();
        thing.end.take();
        if (command.has("grace")) {
            worker.stop(span(command.get("grace")));
        } else {
            worker.close();
        }
        return most;
    }

    private static void handle(String id, Thing thing, Task task) throws Exception {
        Json payload = new Json(task.payload().isPresent() ? Json.read(task.payload().get()) : Map.of());
        if (payload.has("wait")) {
            say(id, "works", task.key(), task.attempts());
            try {
                thing.go.acquire();
            } catch (InterruptedException stopped) {
                say(id, "stopped", how(task));
                throw stopped;
            }
        }
        Thread.sleep(2);
        if (payload.has("fail") && task.attempts() <= payload.number("fail")) {
            throw new AsTold("as told");
        }
        for (int i = 0; payload.has("sql") && i < (payload.has("again") ? 2 : 1); i++) {
            try {
                task.transaction(source, connection -> execute(connection, payload.text("sql")));
            } catch (LeaseException failed) {
                say(id, "not committed", outcome(failed));
                throw failed;
            }
        }
    }

    /** A transaction of the lease; with "also", it presents the tokens of another one, too. */
    private static Object write(Json command) throws Exception {
        THINGS.get(command.text("lease")).lease.transaction(source, connection -> {
            if (command.has("also")) {
                THINGS.get(command.text("also")).lease.present(connection);
            }
            return execute(connection, command.text("sql"));
        });
        return "written";
    }

    /** In a transaction of somebody else. */
    private static Object build(Json command) throws Exception {
        Work<Connection, Void, SQLException> work = connection -> {
            connection.setAutoCommit(false);
            session.present(connection, command.texts("leases").stream().map(id -> THINGS.get(id).lease).toArray(Lease[]::new));
            execute(connection, command.text("sql"));
            connection.commit();
            return null;
        };
        try (Connection connection = source.getConnection()) {
            work.run(connection);
            connection.setAutoCommit(true);
        }
        return "written";
    }

    /** The process does not get to run. */
    private static Object block(Json command) throws Exception {
        String script = "kill -STOP $PPID; sleep " + command.number("ms") / 1000.0 + "; kill -CONT $PPID";
        new ProcessBuilder("sh", "-c", script).start().waitFor();
        return THINGS.get(command.text("lease")).lease.isLost();
    }

    private static Command find(Json command) {
        return switch (command.text("do")) {
            case "lease" -> thing -> lease(command, thing);
            case "many" -> thing -> many(command, thing);
            case "each" -> thing -> each(command, session::lease);
            case "shards" -> thing -> shards(command);
            case "shard" -> thing -> shard(command);
            case "close" -> thing -> close();
            case "load" -> thing -> load(command);
            case "once" -> thing -> session.once(command.text("name"), span(command.get("every"))).isPresent() ? "won" : "no";
            case "elect" -> thing -> elect(command, thing);
            case "watch" -> thing -> watch(command, thing);
            case "worker" -> thing -> worker(command, thing);
            case "write" -> thing -> write(command);
            case "build" -> thing -> build(command);
            case "block" -> thing -> block(command);
            default -> null;
        };
    }

    private static void run(String id, Command command, Thing thing) {
        try {
            Object value = command.run(thing);
            say(id, "ended", value == null ? "ok" : value);
        } catch (Exception failed) {
            failed.printStackTrace();
            say(id, "ended", outcome(failed));
        }
    }

    private static void obey(Json command) {
        String id = command.text("id");
        Command action = find(command);
        if (action != null) {
            Thing thing = new Thing();
            THINGS.put(id, thing);
            thing.thread = start(() -> run(id, action, thing));
            return;
        }
        Thing thing = THINGS.get(id);
        switch (command.text("do")) {
            case "cancel" -> thing.thread.interrupt();
            case "go" -> thing.go.release();
            default -> thing.end.add(command.text("do"));
        }
    }

    public static void main(String[] args) throws IOException {
        source = args[0].equals("pool") ? new Pool(20, args) : Pool.server(args);
        session = Dlock.connect(source);
        start(Scenarios::beat);
        say("session", "is", session.client());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            obey(new Json(Json.read(line)));
        }
        session.close();
    }
}
