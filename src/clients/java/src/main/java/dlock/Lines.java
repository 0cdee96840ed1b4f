package dlock;

import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import javax.sql.DataSource;

/**
 * Connections of a session, and what is asked over them. What comes up while a statement is on its
 * way waits for the next one, which then asks for all of its kind at once. Nothing waits for company:
 * if a line is free, an entry is sent at once.
 *
 * <p>The mutex of a session may be held by who calls this; it is never asked for while this mutex is
 * held, so entries are answered without.
 */
final class Lines {
    /** How long a statement may take, its connection included, if its kind says nothing. */
    static final long ANSWER_WITHIN = TimeUnit.SECONDS.toNanos(10);

    /** The same for an urgent one; and how long an unused connection stays. */
    private static final long URGENT_WITHIN = TimeUnit.SECONDS.toNanos(5);
    private static final long IDLE_WITHIN = TimeUnit.SECONDS.toNanos(10);

    /** Entries in a statement, at most. */
    private static final int BATCH = 1000;

    /** How many broken connections a pool may hand out in a row. */
    private static final int TRIES = 20;
    private static final long PAUSE = TimeUnit.MILLISECONDS.toNanos(20);

    private static final String[] NEEDED = {"dlock_acquire_each", "dlock_renew_each", "dlock_release_each", "dlock_take"};

    /** What is there, and where. The driver's own application_name says less than "dlock". */
    private static final String LOOK =
        "SELECT s.schema, ' ' || s.names || ' ', pg_catalog.current_database(), a.name,"
        + " pg_catalog.set_config('application_name', CASE WHEN a.name IN ('', 'PostgreSQL JDBC Driver') THEN 'dlock' ELSE a.name END, false)"
        + " FROM pg_catalog.current_setting('application_name') AS a(name) LEFT JOIN ("
        + " SELECT pg_catalog.format('%I.', n.nspname) AS schema, pg_catalog.string_agg(DISTINCT p.proname, ' ') AS names"
        + " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        + " LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid"
        + " WHERE p.proname LIKE 'dlock\\_%' GROUP BY n.nspname, e.extversion"
        + " ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1) AS s ON true";
    private static final String RENAME = "SELECT pg_catalog.set_config('application_name', ?, false)";

    /**
     * A kind of entry.
     *
     * @param key    entries of equal keys can be asked for in one statement; null: alone
     * @param urgent it goes first, and not behind a grant: for it there is a second line
     * @param within how long the statement may take; 0: as usual
     * @param text   the statement, %1$s for the schema. It has an array as parameter for each element of an
     *               entry's row, then what is shared. The columns of the answer are arrays, in order.
     *               One that goes alone has the elements as parameters, and rows as its answer
     */
    record Kind(String key, boolean urgent, long within, String text, String... shared) {
        static Kind alone(String text) {
            return new Kind(null, false, 0, text);
        }

        static Kind urgent(String key, String text) {
            return new Kind(key, true, 0, text);
        }
    }

    /**
     * What comes of an entry.
     *
     * @param rows  of one that went alone; the only one of one among many
     * @param sent  when it was sent
     * @param doubt after an error: has it been done, perhaps?
     */
    record Answer(List<String[]> rows, long sent, Throwable error, boolean doubt) {
        String value() {
            return rows.get(0)[0];
        }

        boolean isGood() {
            return error == null;
        }

        boolean isTrue() {
            return error == null && "true".equals(value());
        }
    }

    /** It is answered once; whoever is told must not block. */
    static final class Entry {
        private final Kind kind;
        private final Object[] row; // texts, arrays of texts, nulls
        private final Consumer<Answer> then;
        private boolean gone; // withdrawn
        private boolean taken; // by a line
        private ScheduledFuture<?> limit;

        private Entry(Kind kind, Object[] row, Consumer<Answer> then) {
            this.kind = kind;
            this.row = row;
            this.then = then;
        }
    }

    private static final class Line {
        private Link link;
        private boolean busy;
        private boolean urgent; // what it asks
        private ScheduledFuture<?> idle;
    }

    private final DataSource source;
    private final LongSupplier margin;
    private final List<Line> lines = new ArrayList<>();
    private final Queue urgent = new Queue();
    private final Queue usual = new Queue();
    private final Deque<List<Entry>> halves = new ArrayDeque<>();
    private boolean closed;
    private volatile String schema;

    /** So many lines; an urgent statement may take as long as the margin is by then. */
    Lines(DataSource source, int count, LongSupplier margin) {
        this.source = source;
        this.margin = margin;
        for (int i = 0; i < count; i++) {
            lines.add(new Line());
        }
    }

    /** Where the functions are, as the last connection has found them. */
    String schema() {
        return schema;
    }

    // ---- entries ----

    /** Ask for something; what is not sent by then is answered as unreachable. */
    Entry submit(Kind kind, long within, Consumer<Answer> then, Object... row) {
        Entry entry = new Entry(kind, row, then);
        synchronized (this) {
            (kind.urgent() ? urgent : usual).add(entry);
            pump();
            if (!entry.taken) {
                entry.limit = Background.at(Background.after(within), () ->
                    withdraw(entry, new ServerUnreachable("the server did not get to answer in time", null)));
            }
        }
        return entry;
    }

    /** Take an entry out of the queue, if it is there still. */
    void withdraw(Entry entry, Throwable why) {
        synchronized (this) {
            if (entry.taken || entry.gone) {
                return;
            }
            entry.gone = true;
            Background.cancel(entry.limit);
        }
        entry.then.accept(new Answer(null, 0, why, false));
    }

    /** Ask, and wait for the answer, which may be an error. */
    Answer ask(Kind kind, Object... row) throws InterruptedException {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        Entry entry = submit(kind, ANSWER_WITHIN, answer::complete, row);
        try {
            return answer.get();
        } catch (InterruptedException givenUp) {
            withdraw(entry, givenUp);
            throw givenUp;
        } catch (ExecutionException never) {
            throw new AssertionError(never);
        }
    }

    /** The same in spite of interrupts. */
    Answer askPatiently(Kind kind, long within, Object... row) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        submit(kind, within, answer::complete, row);
        return Background.patiently(answer, Background.FOREVER);
    }

    /** Entries that wait for a statement. */
    synchronized int queued() {
        return urgent.size() + usual.size();
    }

    /** Does nothing wait, and no line ask? */
    synchronized boolean isIdle() {
        return queued() == 0 && halves.isEmpty() && lines.stream().noneMatch(line -> line.busy);
    }

    /** What waits, in groups of equal keys. */
    private static final class Queue {
        private final Map<Object, List<Entry>> groups = new LinkedHashMap<>();

        void add(Entry entry) {
            Object key = entry.kind.key() == null ? entry : entry.kind.key();
            groups.computeIfAbsent(key, none -> new ArrayList<>()).add(entry);
        }

        /** The next entries, of one kind; null: none. */
        List<Entry> next() {
            while (!groups.isEmpty()) {
                Iterator<Map.Entry<Object, List<Entry>>> first = groups.entrySet().iterator();
                Map.Entry<Object, List<Entry>> group = first.next();
                first.remove();
                List<Entry> live = new ArrayList<>(group.getValue());
                live.removeIf(entry -> entry.gone);
                if (live.size() > BATCH) {
                    groups.put(group.getKey(), new ArrayList<>(live.subList(BATCH, live.size())));
                    live = live.subList(0, BATCH);
                }
                if (!live.isEmpty()) {
                    return live;
                }
            }
            return null;
        }

        int size() {
            return groups.values().stream().mapToInt(group -> (int) group.stream().filter(entry -> !entry.gone).count()).sum();
        }
    }

    /** Give free lines something to do; the mutex is held. */
    private void pump() {
        for (int i = 0; i < lines.size(); i++) {
            Line line = lines.get(i);
            if (line.busy || (i > 0 && lines.get(0).urgent)) {
                continue;
            }
            boolean first = i == 0;
            List<Entry> batch = !halves.isEmpty() && (first || halves.peek().get(0).kind.urgent()) ? halves.poll() : urgent.next();
            if (batch == null && first) {
                batch = usual.next();
            }
            if (batch != null) {
                new Trip(line, batch).begin();
            }
        }
    }

    // ---- statements ----

    /** One statement on a line, with a connection that is made if there is none. */
    private final class Trip implements Runnable {
        private final Line line;
        private final List<Entry> batch;
        private final Kind kind;
        private volatile Link link;
        private long sent = -1;
        private boolean over;
        private ScheduledFuture<?> limit;
        private Future<?> thread;

        Trip(Line line, List<Entry> batch) {
            this.line = line;
            this.batch = batch;
            kind = batch.get(0).kind;
        }

        /** The mutex is held. */
        void begin() {
            for (Entry entry : batch) {
                entry.taken = true;
                Background.cancel(entry.limit);
            }
            line.busy = true;
            line.urgent = kind.urgent();
            Background.cancel(line.idle);
            link = line.link;
            line.link = null;
            long within = kind.within() == 0 ? ANSWER_WITHIN : kind.within();
            if (kind.urgent()) {
                within = Math.min(URGENT_WITHIN, margin.getAsLong());
            }
            limit = Background.at(Background.after(within), this::late);
            try {
                thread = Background.run(this);
            } catch (OutOfMemoryError none) {
                Background.at(0, () -> end(null, none));
            }
        }

        @Override
        public void run() {
            List<String[]> rows = null;
            Throwable error = null;
            try {
                if (link == null) {
                    connect();
                }
                synchronized (Lines.this) {
                    if (!over) {
                        sent = Background.now();
                    }
                }
                if (sent >= 0) {
                    rows = link.query(kind.key() != null, kind.text().formatted(link.schema), parameters());
                }
            } catch (SQLException | RuntimeException | Error failed) {
                error = failed;
            }
            if (!end(rows, error) && link != null) {
                link.abort();
            }
        }

        private void connect() throws SQLException {
            for (int tries = 1; ; tries++) {
                link = new Link(source.getConnection());
                try {
                    if (isOver()) {
                        throw new SQLException("the connection has come too late");
                    }
                    link.look();
                    schema = link.schema;
                    return;
                } catch (SQLException | RuntimeException failed) {
                    link.abort();
                    link = null;

                    // What lies in a pool may be broken.
                    if (tries == TRIES || !isOutage(failed) || isOver()) {
                        throw failed;
                    }
                    Background.nap(tries == 1 ? 0 : PAUSE);
                }
            }
        }

        private boolean isOver() {
            synchronized (Lines.this) {
                return over;
            }
        }

        private List<Object> parameters() {
            List<Object> all = new ArrayList<>();
            for (int i = 0; i < batch.get(0).row.length; i++) {
                if (kind.key() == null) {
                    all.add(batch.get(0).row[i]);
                } else {
                    int column = i;
                    all.add(batch.stream().map(entry -> (String) entry.row[column]).toArray(String[]::new));
                }
            }
            all.addAll(Arrays.asList(kind.shared()));
            return all;
        }

        /** It takes too long. The driver may not come back from a server that is silent: then it is left to itself. */
        private void late() {
            Future<?> stuck;
            synchronized (Lines.this) {
                stuck = thread;
            }
            if (end(null, new ServerUnreachable("the server does not answer, or no connection was free", null)) && stuck != null) {
                stuck.cancel(true);
            }
        }

        /** Answer the entries, and free the line; false if that has been done. */
        private boolean end(List<String[]> columns, Throwable error) {
            boolean wasSent;
            synchronized (Lines.this) {
                if (over) {
                    return false;
                }
                over = true;
                limit.cancel(false);
                wasSent = sent >= 0;
            }
            Link kept = link;
            if (error == null) {
                succeed(columns);
            } else {
                fail(error, wasSent);

                // Perhaps the extension has been created anew.
                if (kept != null && (isOutage(error) || !wasSent || "42883".equals(state(error)))) {
                    kept.abort();
                    kept = null;
                }
            }
            synchronized (Lines.this) {
                line.busy = false;
                line.urgent = false;
                line.link = kept;
                pump();
                if (!line.busy && closed) {
                    drop(line);
                } else if (!line.busy && kept != null) {
                    line.idle = Background.at(Background.after(IDLE_WITHIN), () -> dropIdle(line));
                }
            }
            return true;
        }

        private void succeed(List<String[]> columns) {
            if (kind.key() == null) {
                answer(batch.get(0), new Answer(columns, sent, null, false));
                return;
            }
            for (int i = 0; i < batch.size(); i++) {
                int at = i;
                String[] row = columns.stream().map(column -> column[at]).toArray(String[]::new);
                answer(batch.get(i), new Answer(List.<String[]>of(row), sent, null, false));
            }
        }

        /** An error of many is traced to those whose it is by asking for halves: a statement that fails changes nothing. */
        private void fail(Throwable error, boolean wasSent) {
            int half = batch.size() / 2;
            if (wasSent && half > 0 && isOfOne(error)) {
                synchronized (Lines.this) {
                    halves.addFirst(batch.subList(half, batch.size()));
                    halves.addFirst(batch.subList(0, half));
                }
                return;
            }

            // Nothing happens on a standby.
            boolean outage = isOutage(error);
            boolean doubt = outage && wasSent && !"25006".equals(state(error));
            Throwable told = outage && !(error instanceof ServerUnreachable) ? new ServerUnreachable(error.getMessage(), error) : error;
            for (Entry entry : batch) {
                answer(entry, new Answer(null, Math.max(sent, 0), told, doubt));
            }
        }

        private void answer(Entry entry, Answer answer) {
            try {
                entry.then.accept(answer);
            } catch (RuntimeException | Error failed) {
                Background.LOGGER.log(System.Logger.Level.ERROR, "an answer could not be dealt with", failed);
            }
        }
    }

    // ---- connections ----

    /** A connection of the source, made ready. */
    private static final class Link {
        private final Connection connection;
        private boolean automatic;
        private String name; // which it had before
        private String schema;

        Link(Connection connection) {
            this.connection = connection;
        }

        void look() throws SQLException {
            automatic = connection.getAutoCommit();
            if (!automatic) {
                connection.setAutoCommit(true);
            }
            String[] found = query(false, LOOK, List.of()).get(0);
            schema = found[0];
            name = found[3];
            if (schema == null) {
                throw new ServerUnsupported("the database has no dlock; a role with the right to do so has to run CREATE EXTENSION dlock"
                    + " in database \"" + found[2] + "\"", null);
            }
            for (String function : NEEDED) {
                if (!found[1].contains(" " + function + " ")) {
                    throw new ServerUnsupported("dlock of the server is too old: " + function + "() is missing; a role with the right"
                        + " to do so has to run ALTER EXTENSION dlock UPDATE in database \"" + found[2] + "\"", null);
                }
            }
        }

        /** Rows; or, of arrays, columns. */
        List<String[]> query(boolean arrays, String sql, List<Object> parameters) throws SQLException {
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                for (int i = 0; i < parameters.size(); i++) {
                    if (parameters.get(i) instanceof String[] texts) {
                        statement.setArray(i + 1, connection.createArrayOf("text", texts));
                    } else {
                        // A text without a type is whatever the server wants it to be.
                        statement.setObject(i + 1, parameters.get(i), Types.OTHER);
                    }
                }
                try (ResultSet result = statement.executeQuery()) {
                    return read(result, arrays);
                }
            }
        }

        private static List<String[]> read(ResultSet result, boolean arrays) throws SQLException {
            int width = result.getMetaData().getColumnCount();
            List<String[]> all = new ArrayList<>();
            while (result.next()) {
                String[] row = new String[width];
                for (int i = 0; i < width; i++) {
                    if (arrays) {
                        Array column = result.getArray(i + 1);
                        all.add((String[]) column.getArray());
                    } else {
                        row[i] = result.getString(i + 1);
                    }
                }
                if (!arrays) {
                    all.add(row);
                }
            }
            return all;
        }

        /** Give it back as it was; a server that is silent does not keep the thread. */
        void close() {
            ScheduledFuture<?> limit = Background.at(Background.after(URGENT_WITHIN), this::abort);
            try {
                query(false, RENAME, List.of(name));
                connection.setAutoCommit(automatic);
                connection.close();
            } catch (SQLException broken) {
                abort();
            } finally {
                limit.cancel(false);
            }
        }

        /** End it; a pool finds out when it gets it back. */
        void abort() {
            Background.runAnyhow(() -> {
                Background.abort(connection);
                try {
                    connection.close();
                } catch (SQLException broken) {
                    Background.LOGGER.log(System.Logger.Level.DEBUG, "a connection was closed", broken);
                }
            });
        }
    }

    private synchronized void dropIdle(Line line) {
        if (!line.busy) {
            drop(line);
        }
    }

    /** The mutex is held. */
    private void drop(Line line) {
        Link link = line.link;
        line.link = null;
        Background.cancel(line.idle);
        if (link == null) {
            return;
        }
        try {
            Background.run(link::close);
        } catch (OutOfMemoryError none) {
            link.abort();
        }
    }

    /** What is under way may end. */
    synchronized void close() {
        closed = true;
        for (Line line : lines) {
            if (!line.busy) {
                drop(line);
            }
        }
    }

    // ---- errors ----

    /** The SQLSTATE, or nothing if it is no error of the server's. */
    static String state(Throwable error) {
        return error instanceof SQLException failed && failed.getSQLState() != null ? failed.getSQLState() : "";
    }

    private static boolean isOneOf(String state, String... prefixes) {
        return Set.of(prefixes).stream().anyMatch(state::startsWith);
    }

    /** Is this an error that says nothing but that this server cannot be asked now? A standby can do nothing. */
    private static boolean isOutage(Throwable error) {
        String state = state(error);
        return (state.isEmpty() && !(error instanceof ServerUnsupported)) || isOneOf(state, "08", "57P", "25006", "53300");
    }

    /** Could this error be of one entry among many? */
    private static boolean isOfOne(Throwable error) {
        String state = state(error);
        return !state.isEmpty() && !isOneOf(state, "42883", "42501", "57", "0A", "25");
    }
}
