package dlock;

import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Consumer;
import javax.sql.DataSource;

/**
 * Sessions with several servers, each of which has the locks that {@link Dlock#shardOf} gives it. A server that is
 * down refuses these, and no others.
 */
public final class Shards implements AutoCloseable {
    private final List<Session> sessions;

    Shards(List<? extends DataSource> sources, String client) {
        sessions = sources.stream().map(source -> new Session(source, client)).toList();
    }

    /** The session that has the locks of this name: for several locks, or a path, that of what their names share. */
    public Session of(String name) {
        return Dlock.shardOf(name, sessions);
    }

    /** A lease on a lock. */
    public Request lease(String name) {
        return of(name).lease(name);
    }

    /** One of so many permits. */
    public Request semaphore(String name, int permits) {
        return of(name).semaphore(name, permits);
    }

    /** A token, if this is the first call in this time slot. */
    public OptionalLong once(String name, Duration every) throws SQLException, InterruptedException {
        return of(name).once(name, every);
    }

    /** Stand for an election, see {@link Session#elect}. */
    public Election elect(Request request, Election.Lead lead) {
        return request.session.elect(request, lead);
    }

    /** Tell the holder of a lock, see {@link Session#watch}. */
    public Watch watch(String name, Duration every, Consumer<Optional<Holder>> see) {
        return of(name).watch(name, every, see);
    }

    /** Close all sessions. */
    @Override
    public void close() {
        sessions.forEach(Session::close);
    }
}
