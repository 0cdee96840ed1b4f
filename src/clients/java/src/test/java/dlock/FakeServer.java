package dlock;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/** A server whose statements are answered when the test says so. */
final class FakeServer {
    private static final Pattern FUNCTION = Pattern.compile("dlock_([a-z_]+)\\(");

    /** A statement that has been asked for. */
    static final class Asked {
        final String what;
        final Map<Integer, Object> parameters;
        final Thread thread = Thread.currentThread();
        private final CompletableFuture<String> reply = new CompletableFuture<>();

        Asked(String what, Map<Integer, Object> parameters) {
            this.what = what;
            this.parameters = parameters;
        }

        String[] array(int i) {
            return (String[]) parameters.get(i);
        }

        /** Of dlock_acquire_each(). */
        String reentry() {
            return (String) parameters.get(6);
        }

        /** Texts with a comma between them, which may be NULL. */
        void answer(String texts) {
            reply.complete(texts);
        }

        void fail(String sqlState) {
            reply.completeExceptionally(new SQLException("as told", sqlState));
        }

        boolean isRenewal() {
            return what.equals("renew_each") || what.equals("task_renew");
        }

        void answerAll(String text) {
            answer(String.join(",", Collections.nCopies(array(1).length, text)));
        }

        @Override
        public String toString() {
            return what + " " + (parameters.get(1) instanceof String[] names ? String.join(" ", names)
                : parameters.get(1));
        }
    }

    final AtomicInteger connections = new AtomicInteger();
    volatile boolean asksCommits; // COMMIT is a statement
    private final BlockingQueue<Asked> asked = new LinkedBlockingQueue<>();
    private final BlockingQueue<Asked> takes = new LinkedBlockingQueue<>();
    private volatile boolean ended;

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(FakeServer.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, args) -> {
            switch (method.getName()) {
                case "equals":
                    return proxy == args[0];
                case "hashCode":
                    return System.identityHashCode(proxy);
                case "toString":
                    return "fake";
                default:
            }
            return handler.invoke(proxy, method, args == null ? new Object[0] : args);
        }));
    }

    DataSource source() {
        return proxy(DataSource.class, (proxy, method, args) -> {
            connections.incrementAndGet();
            if (ended) {
                throw new SQLException("the test has ended", "08001");
            }
            return connection();
        });
    }

    private Connection connection() {
        CompletableFuture<Void> aborted = new CompletableFuture<>();
        return proxy(Connection.class, (proxy, method, args) -> switch (method.getName()) {
            case "getAutoCommit" -> true;
            case "createArrayOf" -> proxy(Array.class, (array, of, none) -> args[1]);
            case "prepareStatement" -> statement((String) args[0], aborted);
            case "commit" -> asksCommits ? execute("dlock_commit()", Map.of(), aborted) : null;
            case "abort" -> aborted.complete(null) ? null : null;
            default -> null;
        });
    }

    private PreparedStatement statement(String sql, CompletableFuture<Void> aborted) {
        Map<Integer, Object> parameters = new LinkedHashMap<>();
        return proxy(PreparedStatement.class, (proxy, method, args) -> switch (method.getName()) {
            case "setArray" -> parameters.put((Integer) args[0], ((Array) args[1]).getArray());
            case "setObject", "setString" -> parameters.put((Integer) args[0], args[1]);
            case "executeQuery" -> execute(sql, parameters, aborted);
            default -> null;
        });
    }

    private ResultSet execute(String sql, Map<Integer, Object> parameters, CompletableFuture<Void> aborted) throws SQLException {
        if (sql.contains("pg_proc")) {
            return result("s.", " dlock_acquire_each dlock_renew_each dlock_release_each dlock_take ", "db", "name", "1");
        } else if (sql.contains("set_config")) {
            return result("name");
        } else if (sql.contains("SELECT owner FROM s.dlock_lease(")) {
            String[] gone = new String[((String[]) parameters.get(1)).length];
            return result((Object) gone);
        }
        Matcher function = FUNCTION.matcher(sql);
        function.find();
        Asked statement = new Asked(function.group(1), new LinkedHashMap<>(parameters));
        (statement.what.equals("take") ? takes : asked).add(statement);
        try {
            // As a driver that reads from a socket does, it goes on in spite of interrupts, and leaves them to be seen.
            CompletableFuture.anyOf(statement.reply, aborted).handle((answer, error) -> answer).join();
            if (!statement.reply.isDone()) {
                throw new SQLException("aborted", "08006");
            }
            String[] texts = statement.reply.get().split(",");
            texts = Arrays.stream(texts).map(text -> text.equals("NULL") ? null : text).toArray(String[]::new);
            return sql.contains("[]") && !statement.what.equals("task_capture") ? result((Object) texts) : result((Object[]) texts);
        } catch (ExecutionException failed) {
            throw (SQLException) failed.getCause();
        } catch (InterruptedException cut) {
            throw new SQLException(cut);
        }
    }

    /** One row, whose columns are texts or arrays of texts. */
    private static ResultSet result(Object... row) {
        boolean[] read = {row.length == 1 && "".equals(row[0])};
        return proxy(ResultSet.class, (proxy, method, args) -> switch (method.getName()) {
            case "getMetaData" -> proxy(ResultSetMetaData.class, (meta, of, none) -> row.length);
            case "next" -> {
                boolean more = !read[0];
                read[0] = true;
                yield more;
            }
            case "getArray" -> proxy(Array.class, (array, of, none) -> row[(Integer) args[0] - 1]);
            case "getString" -> row[(Integer) args[0] - 1];
            default -> null;
        });
    }

    // ---- for the test ----

    /** The next statement. Renewals that the test does not wait for succeed. */
    Asked any(boolean waitsForRenewal) throws InterruptedException {
        while (true) {
            Asked next = asked.poll(1, TimeUnit.MINUTES);
            if (next == null) {
                throw new AssertionError("nothing is asked for");
            }
            if (waitsForRenewal || !next.isRenewal()) {
                return next;
            }
            next.answerAll("true");
        }
    }

    /** The next statement, which has to be this one. */
    Asked next(String what, String... names) throws InterruptedException {
        Asked next = any(what.equals("renew_each"));
        String expected = what + " " + String.join(" ", names);
        if (!next.toString().equals(expected)) {
            throw new AssertionError(next + " instead of " + expected);
        }
        return next;
    }

    /** The next call that takes turns. */
    Asked take() throws InterruptedException {
        Asked next = takes.poll(1, TimeUnit.MINUTES);
        if (next == null) {
            throw new AssertionError("no turn is asked for");
        }
        return next;
    }

    /** Nothing is asked for, but for renewals. */
    void none() throws InterruptedException {
        for (Asked next; (next = asked.poll(20, TimeUnit.MILLISECONDS)) != null; next.answerAll("true")) {
            if (!next.isRenewal()) {
                throw new AssertionError("asked for " + next);
            }
        }
    }

    /** The test has ended. */
    void end() {
        ended = true;
    }

    int count() {
        return asked.size();
    }
}
