package dlock;

import java.util.Optional;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;

/**
 * Follows who holds a lock, until it is closed. It looks in intervals; all that are watched in such
 * intervals are asked for at once. It has no thread of its own.
 */
public final class Watch implements AutoCloseable {
    private static final Lines.Kind LOOK = new Lines.Kind(
        "SELECT array_agg(l.token ORDER BY i)::text[], array_agg(l.owner ORDER BY i), array_agg(l.payload::text ORDER BY i)"
        + " FROM unnest(?::text[]) WITH ORDINALITY AS e(n, i) LEFT JOIN LATERAL %1$sdlock_watch(n, NULL, '0') AS l ON true");

    private final Session session;
    private final String name;
    private final long every;
    private final Consumer<Optional<Holder>> see;

    // Protected by this.
    private String seen = "";
    private boolean closed;
    private ScheduledFuture<?> next;

    Watch(Session session, String name, long every, Consumer<Optional<Holder>> see) {
        this.session = session;
        this.name = name;
        this.every = every;
        this.see = see;
        session.begin(this, this::look);
    }

    private void look() {
        session.lines.submit(LOOK, Lines.ANSWER_WITHIN, this::answered, name);
    }

    /** Called with the session's mutex, under which neither the watch nor its user may be called. */
    private void answered(Lines.Answer answer) {
        Background.runSoon(() -> {
            try {
                tell(answer);
            } finally {
                lookAgain();
            }
        });
    }

    private void tell(Lines.Answer answer) {
        if (answer.error() != null) {
            if (!(answer.error() instanceof ServerUnreachable)) {
                Background.log(System.Logger.Level.WARNING, "the watch of \"" + name + "\" goes on", answer.error());
            }
            return;
        }
        String[] row = answer.rows().get(0);
        String now = String.valueOf(row[0]);
        synchronized (this) {
            if (closed || now.equals(seen)) {
                return;
            }
            seen = now;
        }
        try {
            see.accept(row[0] == null ? Optional.empty() : Optional.of(new Holder(Long.parseLong(row[0]), row[1], row[2])));
        } catch (RuntimeException failed) {
            Background.log(System.Logger.Level.WARNING, "what watches \"" + name + "\" has failed", failed);
        }
    }

    private synchronized void lookAgain() {
        if (!closed) {
            next = Background.at((Background.now() / every + 1) * every, this::look);
        }
    }

    /** It sees no more. */
    @Override
    public synchronized void close() {
        closed = true;
        Background.cancel(next);
        session.end(this);
    }
}
