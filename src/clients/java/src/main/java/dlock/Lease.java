package dlock;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A lease on a lock, or on several. Its transactions present the tokens. */
public final class Lease extends Hold implements AutoCloseable {
    static final Lines.Kind RENEW = Lines.Kind.urgent("SELECT %1$sdlock_renew_each(?::text[], ?::text[]::bigint[])::text[]");
    static final Lines.Kind RELEASE = Lines.Kind.urgent("SELECT %1$sdlock_release_each(?::text[], ?::text[]::bigint[])::text[]");
    private static final Lines.Kind RENEW_FOR = Lines.Kind.urgent(
        "SELECT array_agg(%1$sdlock_renew_token(n, t, l) ORDER BY i)::text[]"
        + " FROM unnest(?::text[], ?::text[]::bigint[], ?::text[]::interval[]) WITH ORDINALITY AS e(n, t, l, i)");

    /** Adds pairs to the setting, for this transaction. */
    private static final String PRESENT =
        "SELECT set_config('dlock.tokens', concat_ws(',', nullif(t, ''), (SELECT string_agg(p, ',')"
        + " FROM unnest(?::text[]) AS p WHERE position(p || ',' IN t || ',') = 0)), true)"
        + " FROM (SELECT coalesce(current_setting('dlock.tokens', true), '')) AS old(t)";

    /** How long to go on trying to give the lease back, and how often. */
    private static final long GIVE_BACK_WITHIN = TimeUnit.SECONDS.toNanos(3);

    private final String name;
    private final String task;
    private final String owner;
    final Map<String, Long> tokens;
    private final boolean counted; // so it is released until it is not held

    // Protected by the mutex.
    private CompletableFuture<Void> released;
    private boolean closed;

    Lease(Want want, Map<String, Long> tokens, long sent) {
        super(want.session, "the lease on \"" + want.label + "\"", RENEW, rows(tokens), want.request.ttl, want.request.byHand, sent);
        name = want.label;
        task = want.task;
        owner = want.owner;
        this.tokens = tokens;
        counted = want.counts;
    }

    private static List<Object[]> rows(Map<String, Long> tokens) {
        List<Object[]> rows = new ArrayList<>();
        tokens.forEach((lock, token) -> rows.add(new Object[] {lock, Long.toString(token)}));
        return rows;
    }

    public String name() {
        return name;
    }

    /** As dlock_leases shows it: "client#task". */
    public String owner() {
        return owner;
    }

    /** For requests of other threads that are of the same work. */
    public String task() {
        return task;
    }

    /** The fencing token; of the first lock, if there are several. */
    public long token() {
        return tokens.values().iterator().next();
    }

    /** The tokens by the names of locks. */
    public Map<String, Long> tokens() {
        return new LinkedHashMap<>(tokens);
    }

    boolean has(String lock, String token) {
        return token.equals(String.valueOf(tokens.get(lock)));
    }

    /** Present the tokens in a transaction that somebody else has begun. Check the lease before the commit. */
    public void present(Connection connection) throws SQLException {
        session.present(connection, this);
    }

    static void present(Connection connection, Lease... leases) throws SQLException {
        List<String> pairs = new ArrayList<>();
        for (Lease lease : leases) {
            lease.tokens.forEach((lock, token) -> pairs.add("\"" + lock.replace("\"", "\"\"") + "=" + token + "\""));
        }
        try (var statement = connection.prepareStatement(PRESENT)) {
            statement.setArray(1, connection.createArrayOf("text", pairs.toArray(String[]::new)));
            statement.executeQuery().close();
        }
    }

    @Override
    void enter(Connection connection) throws SQLException {
        present(connection, this);
    }

    /**
     * Renew what is renewed by hand, to last so long from now on: is it held?
     *
     * @throws ServerUnreachable the server does not answer; the lease may have become shorter, not longer
     */
    public boolean renew(Duration ttl) throws SQLException, InterruptedException {
        long span = span(ttl);
        synchronized (mutex) {
            renewedByHand(Math.min(deadline, Background.after(span))); // even if it is not heard
        }
        long oldest = Background.FOREVER;
        for (Map.Entry<String, Long> one : tokens.entrySet()) {
            Lines.Answer answer = session.ask(RENEW_FOR, one.getKey(), Long.toString(one.getValue()), Background.interval(span));
            if (!answer.isTrue()) {
                renewedByHand(0);
                return false;
            }
            oldest = Math.min(oldest, answer.sent());
        }
        renewedByHand(oldest + span);
        return true;
    }

    private long span(Duration ttl) {
        if (!byHand) {
            throw new IllegalStateException(what + " is renewed in the background");
        }
        return Request.span(ttl, 1000);
    }

    /**
     * End the work on what is renewed by hand, and let the lease last so long from now on, instead of a release: was it
     * held?
     *
     * @throws ServerUnreachable the server does not answer; the lease lasts as long as it did
     */
    public boolean leave(Duration ttl) throws SQLException, InterruptedException {
        span(ttl);
        try {
            return renew(ttl);
        } finally {
            synchronized (mutex) {
                if (released == null) {
                    released = CompletableFuture.completedFuture(null);
                    end();
                    session.remove(this);
                }
            }
        }
    }

    /**
     * Release it: the work has ended. Called by onLost, it does nothing: the work has not.
     *
     * @throws LeaseLost the lease was lost before
     * @throws ServerUnreachable it could not be renewed in time
     */
    @Override
    public void close() {
        if (isTeller()) {
            return;
        }
        boolean again;
        synchronized (mutex) {
            again = closed;
            closed = true;
        }
        CompletableFuture<Void> done = Lines.drive(() -> {
            CompletableFuture<Void> end = giveBack();
            calm();
            return end;
        });
        mutex.awaitPatiently(done);
        awaitTold(GIVE_BACK_WITHIN);
        synchronized (mutex) {
            if (reason() != null && !again) {
                throw reason();
            }
        }
    }

    /** Release it, once; the result says when that is done, or in vain. */
    CompletableFuture<Void> giveBack() {
        synchronized (mutex) {
            if (released != null) {
                return released;
            }
            released = new CompletableFuture<>();
            boolean late = end();
            session.remove(this);
            session.releasing.add(this);
            long until = Background.after(GIVE_BACK_WITHIN);
            List<CompletableFuture<Void>> each = new ArrayList<>();
            tokens.forEach((lock, token) -> each.add(giveBack(lock, Long.toString(token), until, late)));
            CompletableFuture.allOf(each.toArray(CompletableFuture<?>[]::new)).thenRun(() -> {
                session.releasing.remove(this);
                released.complete(null);
            });
            return released;
        }
    }

    /**
     * A request that was not answered may have released it; if the owner has entered the lock twice, another one
     * would end the other lease.
     */
    private CompletableFuture<Void> giveBack(String lock, String token, long until, boolean late) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        boolean[] doubt = {false};
        session.insist(RELEASE, until, answer -> {
            doubt[0] |= answer.doubt() || answer.isTrue();
            return (answer.isGood() && !(counted && answer.isTrue())) || (doubt[0] && session.holds(owner, lock));
        }, answer -> {
            boolean heard = answer != null && answer.error() == null;
            boolean lost = heard ? !answer.isTrue() && !doubt[0] : left() == 0;
            if (lost && !late && error == null) {
                error = new LeaseLost(what + " was lost before the work had ended", null);
            }
            if (!heard) {
                session.doubt(Set.of(Session.placeOf(owner, lock)), Background.now() + left());
            }
            done.complete(null);
        }, lock, token);
        return done;
    }
}
