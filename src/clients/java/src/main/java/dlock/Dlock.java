package dlock;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.time.Duration;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.zip.CRC32;
import javax.sql.DataSource;

/**
 * Leases of dlock: locks in PostgreSQL that expire, with fencing tokens.
 *
 * <pre>
 * Report report = Dlock.run(source, "nightly-report", Duration.ofMinutes(1), lease -&gt;
 *     lease.transaction(source, connection -&gt; ...));
 * </pre>
 *
 * <p>A lease is renewed until the work has ended. If it is lost, or could not be renewed until five
 * seconds before its end, the work is stopped: its thread is interrupted, connections of its transactions
 * are ended, and the caller gets LeaseLost, ServerUnreachable or SessionClosed.
 */
public final class Dlock {
    private static final Map<DataSource, Session> SESSIONS = new IdentityHashMap<>();

    private Dlock() {
    }

    /** The session of a source: made by the first call, and by the first one after it was closed. */
    public static Session connect(DataSource source) {
        synchronized (SESSIONS) {
            return SESSIONS.computeIfAbsent(source, from -> new Session(from, makeClient()));
        }
    }

    /** A session of its own, whose owners are "client#task". No other one, of whatever program, may have this client. */
    public static Session open(DataSource source, String client) {
        return new Session(source, client);
    }

    /** A session with each of several servers, all of one client. Name each server once, in one order everywhere. */
    public static Shards openShards(List<? extends DataSource> sources) {
        return new Shards(sources, makeClient());
    }

    /**
     * That of several servers which has the locks of this name, by CRC-32: such as one of several sources. Name them
     * in one order everywhere.
     */
    public static <S> S shardOf(String name, List<S> shards) {
        CRC32 crc = new CRC32();
        crc.update(name.getBytes(StandardCharsets.UTF_8));
        return shards.get((int) (crc.getValue() % shards.size()));
    }

    /** What to ask the session of a source for; the lease lasts so long without a renewal. */
    public static Request lease(DataSource source, String name, Duration ttl) {
        return connect(source).lease(name).ttl(ttl);
    }

    /**
     * Run work under a lease, see {@link Request#run}.
     *
     * @return what the work returns
     */
    public static <R, E extends Exception> R run(DataSource source, String name, Duration ttl, Work<Lease, R, E> work)
            throws E, SQLException, InterruptedException {
        return lease(source, name, ttl).run(work);
    }

    /**
     * What an error means, for errors that a library has wrapped: one of dlock's among its causes, or that of
     * an SQLSTATE of dlock's.
     */
    public static Optional<LeaseException> explain(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof LeaseException known) {
                return Optional.of(known);
            }
            LeaseException meant = switch (Lines.state(cause)) {
                case "LK001" -> new TokenStale(cause.getMessage(), error);
                case "LK002" -> new LeaseLost(cause.getMessage(), error);
                case "LK003" -> new TokenMissing(cause.getMessage(), error);
                case "40P01" -> new LeaseDeadlock(cause.getMessage(), error);
                default -> null;
            };
            if (meant != null) {
                return Optional.of(meant);
            }
        }
        return Optional.empty();
    }

    static void forget(Session session) {
        synchronized (SESSIONS) {
            SESSIONS.values().remove(session);
        }
    }

    private static String makeClient() {
        String host = "localhost";
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException error) {
            // So it has none.
        }
        String random = UUID.randomUUID().toString().substring(24);
        return host.substring(0, Math.min(host.length(), 50)) + "/" + ProcessHandle.current().pid() + "/" + random;
    }
}
