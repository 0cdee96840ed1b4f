/*
 * A nightly job: each of several machines starts it, and one of them does the work.
 *
 *     mvn -f src/clients/java install
 *     export CLASSPATH=src/clients/java/target/dlock-1.0.0.jar:postgresql.jar
 *     JDBC_URL=... java src/clients/java/example/NightlyJob.java
 *
 * postgresql.jar is the JDBC driver.  The table and its guard are those of doc/tutorial/nightly-job.md.
 */

import dlock.Dlock;
import dlock.LeaseRefused;
import dlock.Session;
import java.sql.PreparedStatement;
import java.time.Duration;
import java.util.List;
import org.postgresql.ds.PGSimpleDataSource;

class NightlyJob {
    public static void main(String[] args) throws Exception {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setURL(System.getenv("JDBC_URL"));    // jdbc:postgresql://host/database?user=...&password=...
        System.exit(makeReport(source));
    }

    private static int makeReport(PGSimpleDataSource source) throws Exception {
        try (Session session = Dlock.connect(source)) {
            // 1. The first machine of a day wins it.  The day is that of UTC.
            if (session.once("nightly-report", Duration.ofDays(1)).isEmpty()) {
                System.err.println("another machine makes the report of this day");
                return 75;
            }

            // 2. Take the lock.  The last run may still hold it, so wait.  The session renews the lease.
            return session.lease("nightly-report").ttl(Duration.ofMinutes(1)).waitFor(Duration.ofHours(1)).run(lease -> {
                List<String> lines = List.of("made under token " + lease.token());

                // 3. In long work, look often whether the lease is still held.
                lease.check();

                // 4. Write in a transaction that presents the token.
                return lease.transaction(source, connection -> {
                    PreparedStatement insert = connection.prepareStatement("INSERT INTO report VALUES (?)");
                    for (String line : lines) {
                        insert.setString(1, line);
                        insert.executeUpdate();
                    }
                    return 0;
                });
            });
        } catch (LeaseRefused refused) {
            System.err.println(refused.holder().orElse("another machine") + " still makes an earlier report");
            return 75;
        }
    }
}
