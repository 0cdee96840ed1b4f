import java.io.PrintWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.logging.Logger;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** A pool of a few connections, which does not look whether they work. */
final class Pool implements DataSource {
    final Semaphore free;
    private final int size;
    private final DataSource server;
    private final ArrayDeque<Connection> idle = new ArrayDeque<>();
    private volatile boolean exhausted;

    Pool(int size, String... settings) {
        this.size = size;
        free = new Semaphore(size, true);
        server = server(settings);
    }

    /** The server of the environment, with more parameters of the URL. */
    static PGSimpleDataSource server(String... settings) {
        Map<String, String> environment = System.getenv();
        String host = environment.getOrDefault("PGHOST", "/");
        PGSimpleDataSource source = new PGSimpleDataSource();
        StringBuilder url = new StringBuilder("jdbc:postgresql://").append(host.startsWith("/") ? "127.0.0.1" : host)
            .append(':').append(environment.get("PGPORT")).append('/').append(environment.getOrDefault("PGDATABASE", "postgres")).append('?');
        for (String setting : settings) {
            url.append(setting.contains("=") ? setting + "&" : "");
        }
        source.setURL(url.toString());
        source.setUser(environment.get("PGUSER"));
        source.setPassword(environment.get("PGPASSWORD"));
        return source;
    }

    @Override
    public Connection getConnection() throws SQLException {
        try {
            if (!free.tryAcquire(exhausted ? 3600 : 10, TimeUnit.SECONDS)) {
                throw new SQLException("none of the " + size + " connections of the pool was free");
            }
        } catch (InterruptedException disturbed) {
            throw new SQLException(disturbed);
        }
        Connection real;
        synchronized (idle) {
            real = idle.poll();
        }
        try {
            return lend(real == null ? server.getConnection() : real);
        } catch (SQLException failed) {
            free.release();
            throw failed;
        }
    }

    private Connection lend(Connection real) {
        boolean[] returned = {false};
        return (Connection) Proxy.newProxyInstance(Pool.class.getClassLoader(), new Class<?>[] {Connection.class}, (proxy, method, args) -> {
            if (method.getName().equals("close")) {
                giveBack(real, returned);
                return null;
            }
            try {
                return method.invoke(real, args);
            } catch (InvocationTargetException failed) {
                throw failed.getCause();
            }
        });
    }

    private void giveBack(Connection real, boolean[] returned) throws SQLException {
        synchronized (returned) {
            if (returned[0]) {
                return;
            }
            returned[0] = true;
        }
        if (!real.isClosed()) {
            synchronized (idle) {
                idle.push(real);
            }
        }
        if (!exhausted) {
            free.release();
        }
    }

    /** From now on it has no connection for anybody, also if one comes back, and who asks waits for an hour. */
    void exhaust() {
        exhausted = true;
        free.drainPermits();
    }

    @Override
    public Connection getConnection(String user, String password) throws SQLException {
        throw new SQLException("not supported");
    }

    @Override
    public PrintWriter getLogWriter() {
        return null;
    }

    @Override
    public void setLogWriter(PrintWriter writer) {
        // It writes nothing.
    }

    @Override
    public void setLoginTimeout(int seconds) throws SQLException {
        server.setLoginTimeout(seconds);
    }

    @Override
    public int getLoginTimeout() throws SQLException {
        return server.getLoginTimeout();
    }

    @Override
    public Logger getParentLogger() {
        return Logger.getGlobal();
    }

    @Override
    public <T> T unwrap(Class<T> type) throws SQLException {
        throw new SQLException("not supported");
    }

    @Override
    public boolean isWrapperFor(Class<?> type) {
        return false;
    }
}
