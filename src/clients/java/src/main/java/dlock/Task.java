package dlock;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Types;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/** A task of a queue, captured by a worker. A transaction of the task finishes it. */
public final class Task extends Hold {
    private static final Lines.Kind RENEW = kind("renew(q, k, t)");
    static final Lines.Kind FINISH = kind("finish(q, k, t, state => x)");
    static final Lines.Kind FAIL = kind("fail(q, k, t, error => x)");
    static final Lines.Kind RELEASE = kind("release(q, k, t)");
    private static final String FINISH_ONE = "SELECT 1 WHERE %1$sdlock_task_finish(?, ?, ?::bigint, state => ?)";

    /** After errors; and how much longer to go on than the task lasts. */
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(500);
    private static final long STAY = TimeUnit.SECONDS.toNanos(1);

    private final String queue;
    private final String[] row;
    private final String schema;
    private volatile String state;

    /** From a row of dlock_task_capture(). */
    Task(Session session, String schema, String queue, String[] row, long ttl, long sent) {
        super(session, "task \"" + row[0] + "\" of queue \"" + queue + "\"", RENEW,
            List.<Object[]>of(new Object[] {queue, row[0], row[1], null}), ttl, false, sent);
        this.queue = queue;
        this.schema = schema;
        this.row = row;
    }

    private static Lines.Kind kind(String call) {
        return Lines.Kind.urgent("SELECT array_agg(%1$sdlock_task_" + call + " ORDER BY i)::text[]"
            + " FROM unnest(?::text[], ?::text[], ?::text[]::bigint[], ?::text[]) WITH ORDINALITY AS e(q, k, t, x, i)");
    }

    public String queue() {
        return queue;
    }

    public String key() {
        return row[0];
    }

    public long token() {
        return Long.parseLong(row[1]);
    }

    /** JSON. */
    public Optional<String> payload() {
        return Optional.ofNullable(row[2]);
    }

    public int priority() {
        return Integer.parseInt(row[3]);
    }

    /** How many there have been, with this one. */
    public int attempts() {
        return Integer.parseInt(row[4]);
    }

    /** The state that it was captured from. */
    public String fromState() {
        return row[5];
    }

    /** The state that it is to have when it is finished, if not that of the queue. */
    public void state(String name) {
        state = name;
    }

    /** What the transaction has written is committed with the end of the task, or not at all. */
    @Override
    void commit(Connection connection) throws SQLException {
        finishing(1);
        try (PreparedStatement statement = connection.prepareStatement(FINISH_ONE.formatted(schema))) {
            statement.setString(1, queue);
            statement.setString(2, key());
            statement.setLong(3, token());
            statement.setObject(4, state, Types.OTHER);
            if (!statement.executeQuery().next()) {
                finish();
                throw new LeaseLost("an earlier transaction has finished " + what, null);
            }
            super.commit(connection);
            finish();
        } finally {
            finishing(-1);
        }
    }

    private void finishing(int more) {
        synchronized (mutex) {
            finishing += more;
            session.arm(next());
        }
    }

    private void finish() {
        synchronized (mutex) {
            finished = true;
            session.forget(this);
        }
    }

    /** Work on it in this thread, and tell the server how that has ended. */
    void handle(Worker.Handler handler, Worker worker) {
        Throwable failure = null;
        synchronized (mutex) {
            begin(Thread.currentThread(), null);
        }
        Scope.enter(this);
        boolean refused = worker.isStopping() || isLost(); // as this process did not get to run
        if (!refused) {
            try {
                handler.handle(this);
            } catch (Throwable failed) {
                failure = failed;
            }
        }
        calm();
        boolean over;
        synchronized (mutex) {
            over = finished || reason() != null;
        }
        try {
            if (refused || (!over && failure != null && worker.isAborted())) {
                settle(RELEASE, null);
            } else if (!over && failure != null) {
                settle(FAIL, String.valueOf(failure.getMessage()).replace('\0', ' '));
            } else if (!over) {
                settle(FINISH, state);
            } else if (failure != null) {
                Background.log(System.Logger.Level.WARNING, what + " had ended when its handler failed", failure);
            }
        } finally {
            synchronized (mutex) {
                end();
            }
        }
        if (failure instanceof Error fatal) {
            throw fatal;
        }
    }

    void abort() {
        synchronized (mutex) {
            interrupt();
        }
    }

    /** Ask again if the server does not answer: that does no harm. */
    private void settle(Lines.Kind kind, String extra) {
        while (true) {
            long left = remaining().toNanos();
            Lines.Answer answer = session.lines.askPatiently(kind, left + STAY, queue, row[0], row[1], extra);
            if (left > 0 && answer.error() instanceof ServerUnreachable) {
                Background.nap(RETRY_AFTER);
                continue;
            } else if (!answer.isGood()) {
                Background.log(System.Logger.Level.WARNING, what + " was not settled", answer.error());
            }
            return;
        }
    }
}
