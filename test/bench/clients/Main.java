import com.sun.management.OperatingSystemMXBean;
import dlock.Dlock;
import dlock.Request;
import dlock.Session;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import javax.net.SocketFactory;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * Leases a second that the tasks of one program in Java take and release, as main.js has it for Node:
 *
 * <pre>
 * Main version PEER             the version of Java
 * Main rate PEER KEY=VALUE...   tasks=8 seconds=2 hot=0
 * </pre>
 *
 * <p>PEER is java_session or java_connection; a task is a thread. The server is that of PGHOST, a directory, and so on.
 */
final class Main {
    /** So long the compiler of the machine needs, at least. */
    private static final long LEAD = 3_000_000_000L;
    private static final PGSimpleDataSource SOURCE = new PGSimpleDataSource();
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Main() {
    }

    /** Has the driver use a socket in the file system, as the programs in other languages do. */
    public static final class Unix extends SocketFactory {
        private final UnixDomainSocketAddress path;

        public Unix(String path) {
            this.path = UnixDomainSocketAddress.of(path);
        }

        @Override
        public Socket createSocket() throws IOException {
            SocketChannel channel = SocketChannel.open(path);
            return new Socket() {
                @Override
                public boolean isConnected() {
                    return true;
                }

                @Override
                public InputStream getInputStream() {
                    return Channels.newInputStream(channel);
                }

                @Override
                public OutputStream getOutputStream() {
                    return Channels.newOutputStream(channel);
                }

                @Override
                public void setTcpNoDelay(boolean on) {
                    // It has no such delay.
                }

                @Override
                public void close() throws IOException {
                    channel.close();
                }
            };
        }

        @Override
        public Socket createSocket(String host, int port) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(String host, int port, InetAddress from, int fromPort) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(InetAddress host, int port) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Socket createSocket(InetAddress host, int port, InetAddress from, int fromPort) {
            throw new UnsupportedOperationException();
        }
    }

    private static void setSource() {
        Map<String, String> environment = System.getenv();
        SOURCE.setSocketFactory("Main$Unix");
        SOURCE.setSocketFactoryArg(environment.get("PGHOST") + "/.s.PGSQL." + environment.get("PGPORT"));
        SOURCE.setDatabaseName(environment.get("PGDATABASE"));
        SOURCE.setUser(environment.get("PGUSER"));
        SOURCE.setOptions(environment.get("PGOPTIONS"));
    }

    /** What a task does, again and again. */
    private static Callable<?> sessionPairs(Session session, String name, boolean hot) {
        Request request = session.lease(name);
        Request asked = hot ? request.waitForever() : request;
        return () -> asked.run(lease -> null);
    }

    private static Callable<?> connectionPairs(int task, String name, boolean hot) throws SQLException {
        Connection connection = SOURCE.getConnection();
        PreparedStatement acquire = connection.prepareStatement("SELECT dlock_acquire(?, ?, '60 s', ?::text::interval)");
        PreparedStatement release = connection.prepareStatement("SELECT dlock_release_token(?, ?)");
        acquire.setString(1, name);
        acquire.setString(2, "task " + task);
        acquire.setString(3, hot ? null : "0");
        release.setString(1, name);
        return () -> {
            try (ResultSet granted = acquire.executeQuery()) {
                granted.next();
                release.setLong(2, granted.getLong(1));
            }
            try (ResultSet released = release.executeQuery()) {
                released.next();
                if (!released.getBoolean(1)) {
                    throw new IllegalStateException(name + " was lost");
                }
            }
            return null;
        };
    }

    /** How many pairs there are from then on. */
    private static int count(Callable<?> pair, long from, long until) throws Exception {
        int done = 0;
        for (long begun = System.nanoTime(); begun - until < 0;) {
            pair.call();
            long ended = System.nanoTime();
            if (begun - from >= 0 && ended - until <= 0) {
                done++;
            }
            begun = ended;
        }
        return done;
    }

    private static CompletableFuture<Integer> start(Callable<Integer> work) {
        CompletableFuture<Integer> result = new CompletableFuture<>();
        new Thread(null, () -> {
            try {
                result.complete(work.call());
            } catch (Throwable failed) {
                result.completeExceptionally(failed);
            }
        }, "task", 256 * 1024).start();
        return result;
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("version")) {
            System.out.println("dlock for Java " + Runtime.version().feature());
            return;
        }
        Map<String, Integer> settings = new HashMap<>(Map.of("tasks", 8, "seconds", 2, "hot", 0));
        for (int i = 2; i < args.length; i++) {
            String[] word = args[i].split("=");
            settings.put(word[0], Integer.valueOf(word[1]));
        }
        setSource();
        boolean hot = settings.get("hot") == 1;
        Session session = Dlock.connect(SOURCE);
        List<Callable<?>> pairs = new ArrayList<>();
        for (int task = 0; task < settings.get("tasks"); task++) {
            String name = hot ? "hot" : "own:" + task;
            pairs.add(args[1].equals("java_session") ? sessionPairs(session, name, hot) : connectionPairs(task, name, hot));
        }

        long from = System.nanoTime() + LEAD;
        long until = from + settings.get("seconds") * 1_000_000_000L;
        List<CompletableFuture<Integer>> counts = pairs.stream().map(pair -> start(() -> count(pair, from, until))).toList();
        Thread.sleep(LEAD / 1_000_000);
        long cpu = SYSTEM.getProcessCpuTime();
        long sum = 0;
        for (CompletableFuture<Integer> done : counts) {
            sum += done.get();
        }
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        System.out.println("rate " + (double) sum / settings.get("seconds"));
        System.out.println("cpu_us " + cpu / 1000.0 / Math.max(sum, 1));
        System.exit(0);
    }
}
