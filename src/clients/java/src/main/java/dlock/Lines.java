package dlock;

import java.io.IOException;
import java.nio.channels.spi.AbstractInterruptibleChannel;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import javax.sql.DataSource;

/**
 * Connections of a session, and what is asked over them. What comes up while a statement is on its
 * way waits for the next one, which then asks for all of its kind at once. Nothing waits for company:
 * if a line is free, an entry is sent at once.
 *
 * <p>All is protected by the session's mutex, which may be held by who calls. It is held while the entries of a statement
 * are answered. The threads that wait for that are woken afterwards, before the line goes on, so what they ask for next
 * goes together.
 */
final class Lines {
    /** How long a statement may take, its connection included, if its kind says nothing. */
    static final long ANSWER_WITHIN = TimeUnit.SECONDS.toNanos(10);

    /** The same for an urgent one; and how long an unused connection stays. */
    private static final long URGENT_WITHIN = TimeUnit.SECONDS.toNanos(5);
    private static final long CONNECT_WITHIN = TimeUnit.SECONDS.toNanos(1); // at least
    private static final long IDLE_WITHIN = TimeUnit.SECONDS.toNanos(10);

    /** Entries in a statement, at most. */
    private static final int BATCH = 1000;

    /** How many broken connections a pool may hand out in a row. */
    private static final int TRIES = 20;
    private static final long PAUSE = TimeUnit.MILLISECONDS.toNanos(20);

    private static final String[] NEEDED = {"dlock_acquire_each", "dlock_renew_each", "dlock_release_each", "dlock_take"};

    /** What is there, and where. The driver's own application_name says less than "dlock". */
    private static final String LOOK =
        "SELECT s.schema, ' ' || s.names || ' ', pg_catalog.current_database(), a.name, pg_catalog.pg_backend_pid(),"
        + " pg_catalog.set_config('application_name', CASE WHEN a.name IN ('', 'PostgreSQL JDBC Driver') THEN 'dlock' ELSE a.name END, false)"
        + " FROM pg_catalog.current_setting('application_name') AS a(name) LEFT JOIN ("
        + " SELECT pg_catalog.format('%%I.', n.nspname) AS schema, pg_catalog.string_agg(DISTINCT p.proname, ' ') AS names"
        + " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        + " LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'dlock' AND e.extnamespace = n.oid"
        + " WHERE p.proname LIKE 'dlock\\_%%' GROUP BY n.nspname, e.extversion"
        + " ORDER BY e.extversion IS NULL, max(pg_catalog.pg_function_is_visible(p.oid)::int) DESC LIMIT 1) AS s ON true";
    private static final String RENAME = "SELECT pg_catalog.set_config('application_name', ?, false)";

    /**
     * A kind of entry. Those of equal kinds can be asked for in one statement.
     *
     * @param text   the statement, %1$s for the schema. It has an array as parameter for each element of an
     *               entry's row, then what is shared. The columns of the answer are arrays, in order
     * @param urgent it goes first, and not behind a grant: for it there is a second line
     * @param alone  it goes alone, with the elements as parameters, and rows as its answer
     * @param within how long the statement may take
     */
    record Kind(String text, boolean urgent, boolean alone, long within, List<String> shared) {
        Kind(String text, String... shared) {
            this(text, false, false, ANSWER_WITHIN, Arrays.asList(shared));
        }

        static Kind alone(String text, long within) {
            return new Kind(text, false, true, within, List.of());
        }

        static Kind urgent(String text) {
            return new Kind(text, true, false, URGENT_WITHIN, List.of());
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

    /** It is answered once; whoever is told must not block. The row has texts, arrays of texts and nulls. */
    static final class Entry {
        private final Kind kind;
        private final Object[] row;
        private final long until;
        private final Consumer<Answer> then;

        private Entry(Kind kind, Object[] row, long until, Consumer<Answer> then) {
            this.kind = kind;
            this.row = row;
            this.until = until;
            this.then = then;
        }

        private void answer(Answer answer) {
            try {
                then.accept(answer);
            } catch (RuntimeException | Error failed) {
                Background.log(System.Logger.Level.ERROR, "an answer could not be dealt with", failed);
            }
        }
    }

    private static final class Line {
        private Link link; // unless a trip has it
        private Trip trip; // what it is at
        private long idleUntil;
    }

    /** While a thread asks for something that it will wait for: the statement that it is to make itself. */
    private static final ThreadLocal<Trip[]> HERE = new ThreadLocal<>();

    private final DataSource source;
    private final Mutex mutex;
    private final LongSupplier margin;
    private final List<Line> lines = new ArrayList<>();
    private final Set<Entry> urgent = new LinkedHashSet<>();
    private final Set<Entry> usual = new LinkedHashSet<>();
    private final Deque<List<Entry>> halves = new ArrayDeque<>();
    private final Background.Alarm alarm = new Background.Alarm(this::endLate);
    private boolean closed;
    private volatile String schema;

    /** So many lines; an urgent statement may take as long as the margin is by then. */
    Lines(DataSource source, Mutex mutex, int count, LongSupplier margin) {
        this.source = source;
        this.mutex = mutex;
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
        Entry entry = new Entry(kind, row, Background.after(within), then);
        synchronized (mutex) {
            (kind.urgent() ? urgent : usual).add(entry);
            alarm.set(entry.until);
            pump(null);
        }
        return entry;
    }

    /**
     * Have something asked for that this thread is going to wait for. If a line is free, the thread makes the statement
     * itself, which spares waking another one twice. An interrupt ends the connection, and so the statement.
     */
    static <T> T drive(Supplier<T> asking) {
        Trip[] here = {null};
        HERE.set(here);
        try {
            return asking.get();
        } finally {
            HERE.remove();
            if (here[0] != null) {
                start(Thread.currentThread().isInterrupted() ? here[0].leave() : here[0].make());
            }
        }
    }

    /** Take an entry out of the queue, if it is there still; no thread has to wait for one that it has asked for itself. */
    void withdraw(Entry entry, Throwable why) {
        synchronized (mutex) {
            if (!urgent.remove(entry) && !usual.remove(entry)) {
                lines.stream().map(line -> line.trip).filter(trip -> trip != null && trip.driven && trip.batch.contains(entry))
                    .forEach(trip -> trip.link.abort());
                return;
            }
        }
        entry.answer(new Answer(null, 0, why, false));
    }

    /** Ask, and wait for the answer, which may be an error. */
    Answer ask(Kind kind, Object... row) throws InterruptedException {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        Entry entry = drive(() -> submit(kind, ANSWER_WITHIN, answer::complete, row));
        try {
            Answer made = answer.getNow(null);
            if ((made == null || !made.isGood()) && Thread.interrupted()) {
                throw new InterruptedException();
            }
            mutex.await(answer);
            return answer.join();
        } catch (InterruptedException givenUp) {
            withdraw(entry, givenUp);
            throw givenUp;
        }
    }

    /** The same in spite of interrupts. */
    Answer askPatiently(Kind kind, long within, Object... row) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        drive(() -> submit(kind, within, answer::complete, row));
        mutex.awaitPatiently(answer);
        return answer.join();
    }

    /** Entries that wait for a statement. */
    int queued() {
        synchronized (mutex) {
            return urgent.size() + usual.size();
        }
    }

    /** Does nothing wait, and no line ask? */
    boolean isIdle() {
        synchronized (mutex) {
            return queued() == 0 && halves.isEmpty() && lines.stream().allMatch(line -> line.trip == null);
        }
    }

    /** The next entries of one kind; null: none. */
    private static List<Entry> next(Set<Entry> queue) {
        List<Entry> batch = new ArrayList<>();
        for (Iterator<Entry> all = queue.iterator(); all.hasNext() && batch.size() < BATCH;) {
            Entry entry = all.next();
            if (batch.isEmpty() || (!entry.kind.alone() && entry.kind.equals(batch.get(0).kind))) {
                batch.add(entry);
                all.remove();
            }
        }
        return batch.isEmpty() ? null : batch;
    }

    /** Give free lines something to do; the mutex is held. Returns what the caller is to make on its line. */
    private Trip pump(Line own) {
        for (int i = 0; i < lines.size(); i++) {
            Line line = lines.get(i);
            boolean first = i == 0;
            if (line.trip != null || (!first && lines.get(0).trip != null && lines.get(0).trip.kind.urgent())) {
                continue;
            }
            List<Entry> batch = !halves.isEmpty() && (first || halves.peek().get(0).kind.urgent()) ? halves.poll() : next(urgent);
            if (batch == null && first) {
                batch = next(usual);
            }
            if (batch != null) {
                line.trip = new Trip(line, batch);
                alarm.set(line.trip.until);
                if (line != own) {
                    start(line.trip);
                }
            }
        }
        return own == null ? null : own.trip;
    }

    /** Have a thread make a statement, if there is one to be made. */
    private static void start(Trip trip) {
        Trip[] here = HERE.get();
        if (trip == null) {
            return;
        } else if (here != null && here[0] == null && trip.link != null) {
            here[0] = trip;
            trip.driven = true;
            return;
        }
        try {
            Background.run(trip);
        } catch (OutOfMemoryError none) {
            Background.at(0, () -> start(trip.end(null, none)));
        }
    }

    /** Answer what has waited for too long, and give back connections that nobody needs. */
    private void endLate() {
        List<Entry> late = new ArrayList<>();
        List<Trip> trips = new ArrayList<>();
        synchronized (mutex) {
            long now = Background.now();
            for (Set<Entry> queue : List.of(urgent, usual)) {
                queue.removeIf(entry -> entry.until <= now && late.add(entry));
                queue.forEach(entry -> alarm.set(entry.until));
            }
            for (Line line : lines) {
                if (line.trip != null && line.trip.until <= now) {
                    trips.add(line.trip);
                } else if (line.trip != null) {
                    alarm.set(line.trip.until);
                } else if (line.link != null && line.idleUntil <= now) {
                    drop(line);
                } else if (line.link != null) {
                    alarm.set(line.idleUntil);
                }
            }
        }
        Throwable unsent = new ServerUnreachable("the server did not get to answer in time", null);
        late.forEach(entry -> entry.answer(new Answer(null, 0, unsent, false)));
        trips.forEach(trip -> start(trip.end(null, new ServerUnreachable("the server does not answer, or no connection was free", null))));
    }

    // ---- statements ----

    /** One statement on a line, with a connection that is made if there is none. */
    private final class Trip implements Runnable {
        private final Line line;
        private final List<Entry> batch;
        private final Kind kind;
        private final long until;
        private volatile Link link;
        private long sent = -1;
        private boolean over;
        private boolean driven; // by a thread that waits for it
        private Thread connecting; // the thread that waits for a connection

        Trip(Line line, List<Entry> batch) {
            this.line = line;
            this.batch = batch;
            kind = batch.get(0).kind;
            link = line.link;
            long soon = Math.min(kind.within(), Math.max(margin.getAsLong(), link == null ? CONNECT_WITHIN : 0));
            until = Background.after(kind.urgent() ? soon : kind.within());
            line.link = null;
        }

        /** And what has come up meanwhile. */
        @Override
        public void run() {
            for (Trip trip = this; trip != null;) {
                trip = trip.make();
            }
        }

        /** The thread that was to make it does not. */
        Trip leave() {
            synchronized (mutex) {
                driven = false;
            }
            return this;
        }

        /** Returns the next one of the line, which this thread is to make. */
        Trip make() {
            List<String[]> columns = null;
            Throwable error = null;
            try {
                if (link == null) {
                    connect();
                }
                synchronized (mutex) {
                    sent = over ? -1 : Background.now();
                }
                if (sent >= 0) {
                    columns = link.ask(kind, batch);
                }
            } catch (SQLException | RuntimeException | Error failed) {
                error = failed;
            }
            return end(columns, error);
        }

        private void connect() throws SQLException {
            for (int tries = 1; ; tries++) {
                Link made = new Link(getConnection());
                try {
                    synchronized (mutex) {
                        if (over) {
                            throw new SQLException("the connection has come too late");
                        }
                        link = made;
                    }
                    made.look();
                    schema = made.schema;
                    return;
                } catch (SQLException | RuntimeException failed) {
                    made.abort();
                    synchronized (mutex) {
                        // What lies in a pool may be broken.
                        if (over || tries == TRIES || !isOutage(failed)) {
                            throw failed;
                        }
                        link = null;
                    }
                    Background.nap(tries == 1 ? 0 : PAUSE);
                }
            }
        }

        private Connection getConnection() throws SQLException {
            synchronized (mutex) {
                connecting = over ? null : Thread.currentThread();
            }
            try {
                return source.getConnection();
            } finally {
                synchronized (mutex) {
                    connecting = null;
                    Thread.interrupted();
                }
            }
        }

        /**
         * Answer the entries, unless that has been done, and free the line. The thread that waits for the driver may be
         * another one, which is left to itself: the driver may not come back from a server that is silent.
         */
        private Trip end(List<String[]> columns, Throwable error) {
            boolean wasSent;
            boolean again;
            synchronized (mutex) {
                wasSent = sent >= 0;
                again = over;
                over = true;
                if (connecting != null) {
                    connecting.interrupt();
                }
            }
            if (!again) {
                mutex.run(error == null ? () -> succeed(columns) : () -> fail(error, wasSent));
            }

            // Perhaps the extension has been created anew, or there is a pooler which there was not before.
            boolean good = error == null || (wasSent && !isOutage(error) && !isOneOf(state(error), "42883", "3F000", "26000", "42P05"));
            if (link != null && (again || !good)) {
                link.abort();
            }
            if (again) {
                return null;
            }
            synchronized (mutex) {
                line.trip = null;
                line.link = link != null && link.isOpen() ? link : null;
                Trip next = pump(line);
                if (next == null && closed) {
                    drop(line);
                } else if (next == null && line.link != null) {
                    line.idleUntil = Background.after(IDLE_WITHIN);
                    alarm.set(line.idleUntil);
                }
                return next;
            }
        }

        private void succeed(List<String[]> columns) {
            if (kind.alone()) {
                batch.get(0).answer(new Answer(columns, sent, null, false));
                return;
            }
            for (int i = 0; i < batch.size(); i++) {
                String[] row = new String[columns.size()];
                for (int column = 0; column < row.length; column++) {
                    row[column] = columns.get(column)[i];
                }
                batch.get(i).answer(new Answer(List.<String[]>of(row), sent, null, false));
            }
        }

        /** An error of many is traced to those whose it is by asking for halves: a statement that fails changes nothing. */
        private void fail(Throwable error, boolean wasSent) {
            int half = batch.size() / 2;
            if (wasSent && half > 0 && isOfOne(error)) {
                halves.addFirst(batch.subList(half, batch.size()));
                halves.addFirst(batch.subList(0, half));
                return;
            }

            // Nothing happens on a standby.
            boolean outage = isOutage(error);
            boolean doubt = outage && wasSent && !"25006".equals(state(error));
            Throwable told = outage && !(error instanceof ServerUnreachable) ? new ServerUnreachable(error.getMessage(), error) : error;
            batch.forEach(entry -> entry.answer(new Answer(null, Math.max(sent, 0), told, doubt)));
        }
    }

    // ---- connections ----

    /** A connection of the source, made ready. It is ended by an interrupt of the thread that asks. */
    private static final class Link extends AbstractInterruptibleChannel {
        private final Connection connection;
        private final Map<String, PreparedStatement> statements = new HashMap<>(); // by their texts
        private boolean automatic;
        private String name; // which it had before
        private String schema;
        private Object driver; // PostgreSQL's own
        private Class<?> driverType;
        private Object threshold; // which it had before

        Link(Connection connection) {
            this.connection = connection;
        }

        void look() throws SQLException {
            automatic = connection.getAutoCommit();
            if (!automatic) {
                connection.setAutoCommit(true);
            }
            findDriver();
            String[] found = query(LOOK, true, List.of()).get(0);
            schema = found[0];
            name = found[3];
            if (driver != null && found[4].equals(String.valueOf(call("getBackendPID")))) {
                call("setPrepareThreshold", threshold);
            }
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

        /**
         * It prepares nothing if there is a pooler in between, which would send that elsewhere, and else as it is set.
         * Other drivers decide for themselves.
         */
        private void findDriver() throws SQLException {
            try {
                Connection own = connection.unwrap(Connection.class);
                driverType = Class.forName("org.postgresql.PGConnection", false, own.getClass().getClassLoader());
                driver = connection.unwrap(driverType);
            } catch (ClassNotFoundException | SQLException | RuntimeException another) {
                return;
            }
            threshold = call("getPrepareThreshold");
            call("setPrepareThreshold", 0);
        }

        private Object call(String method, Object... number) throws SQLException {
            try {
                Class<?>[] types = number.length == 0 ? new Class<?>[0] : new Class<?>[] {int.class};
                return driverType.getMethod(method, types).invoke(driver, number);
            } catch (ReflectiveOperationException failed) {
                throw new SQLException(failed);
            }
        }

        List<String[]> ask(Kind kind, List<Entry> batch) throws SQLException {
            Object[] first = batch.get(0).row;
            List<Object> parameters = new ArrayList<>(Arrays.asList(first));
            for (int column = 0; !kind.alone() && column < first.length; column++) {
                String[] texts = new String[batch.size()];
                for (int i = 0; i < texts.length; i++) {
                    texts[i] = (String) batch.get(i).row[column];
                }
                parameters.set(column, texts);
            }
            parameters.addAll(kind.shared());
            begin();
            try {
                return query(kind.text(), kind.alone(), parameters);
            } finally {
                try {
                    end(true);
                } catch (IOException interrupted) {
                    // It is closed.
                }
            }
        }

        /** Rows; or, of arrays, columns. */
        private List<String[]> query(String text, boolean rows, List<Object> parameters) throws SQLException {
            PreparedStatement statement = statements.get(text);
            if (statement == null) {
                statement = connection.prepareStatement(text.formatted(schema));
                statements.put(text, statement);
            }
            for (int i = 0; i < parameters.size(); i++) {
                if (parameters.get(i) instanceof String[] texts) {
                    statement.setArray(i + 1, connection.createArrayOf("text", texts));
                } else {
                    // A text without a type is whatever the server wants it to be.
                    statement.setObject(i + 1, parameters.get(i), Types.OTHER);
                }
            }
            try (ResultSet result = statement.executeQuery()) {
                int width = result.getMetaData().getColumnCount();
                List<String[]> all = new ArrayList<>();
                while (result.next()) {
                    String[] row = new String[width];
                    for (int i = 0; i < width; i++) {
                        if (rows) {
                            row[i] = result.getString(i + 1);
                        } else {
                            all.add((String[]) result.getArray(i + 1).getArray());
                        }
                    }
                    if (rows) {
                        all.add(row);
                    }
                }
                return all;
            }
        }

        /** As it was; a server that is silent does not keep the thread. */
        void giveBack() {
            ScheduledFuture<?> limit = Background.at(Background.after(URGENT_WITHIN), this::abort);
            try {
                query(RENAME, true, List.of(name));
                for (PreparedStatement statement : statements.values()) {
                    statement.close();
                }
                if (driver != null) {
                    call("setPrepareThreshold", threshold);
                }
                connection.setAutoCommit(automatic);
                connection.close();
            } catch (SQLException | RuntimeException broken) {
                abort();
            } finally {
                limit.cancel(false);
            }
        }

        void abort() {
            try {
                close();
            } catch (IOException never) {
                throw new AssertionError(never);
            }
        }

        /** Not by this thread, which may hold the mutex. */
        @Override
        protected void implCloseChannel() {
            try {
                Background.run(this::hangUp);
            } catch (OutOfMemoryError none) {
                Background.at(0, this::hangUp);
            }
        }

        /** A pool finds out when it gets it back. */
        private void hangUp() {
            Background.abort(connection);
            try {
                connection.close();
            } catch (SQLException broken) {
                Background.log(System.Logger.Level.DEBUG, "a connection was closed", broken);
            }
        }
    }

    /** The mutex is held. */
    private void drop(Line line) {
        if (line.link != null) {
            Background.runSoon(line.link::giveBack);
            line.link = null;
        }
    }

    /** What is under way may end. */
    void close() {
        synchronized (mutex) {
            closed = true;
            lines.stream().filter(line -> line.trip == null).forEach(this::drop);
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
        return !isOutage(error) && !isOneOf(state(error), "42883", "3F000", "42501", "57", "0A", "25");
    }
}
