package dlock.shedlock;

import dlock.Dlock;
import dlock.Lease;
import dlock.LeaseLost;
import dlock.LeaseRefused;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.Callable;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A LockProvider of ShedLock whose locks are leases of dlock.
 *
 * <pre>
 * &#64;Bean
 * LockProvider lockProvider(DataSource source) {
 *     return new DlockLockProvider(source);
 * }
 * </pre>
 *
 * <p>As ShedLock has it, a lock is renewed by extend() alone, which KeepAliveLockProvider calls, and what was
 * unlocked before lockAtLeastFor stays locked until then.
 */
public final class DlockLockProvider implements ExtensibleLockProvider {
    /** A lease cannot last less. */
    private static final Duration SHORTEST = Duration.ofNanos(1000);

    private final DataSource source;

    public DlockLockProvider(DataSource source) {
        this.source = source;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        String name = configuration.getName();
        long now = System.nanoTime();
        try {
            Lease lease = Dlock.lease(source, name, configuration.getLockAtMostFor()).byHand().acquire();
            return Optional.of(new Lock(lease, now, configuration.getLockAtLeastFor()));
        } catch (LeaseRefused held) {
            return Optional.empty();
        } catch (InterruptedException givenUp) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        } catch (SQLException failed) {
            throw new IllegalStateException("lock \"" + name + "\" could not be acquired", failed);
        }
    }

    private static final class Lock implements SimpleLock {
        private final Lease lease;
        private final long since;
        private final Duration least;
        private boolean used;

        Lock(Lease lease, long since, Duration least) {
            this.lease = lease;
            this.since = since;
            this.least = least;
        }

        private void checkUnused() {
            if (used) {
                throw new IllegalStateException("lock \"" + lease.name() + "\" has been unlocked or extended already");
            }
        }

        @Override
        public void unlock() {
            checkUnused();
            used = true;
            Duration left = least.minusNanos(System.nanoTime() - since);
            try {
                if (left.compareTo(SHORTEST) < 0) {
                    lease.close();
                } else {
                    renew(() -> lease.leave(left));
                }
            } catch (LeaseLost expired) {
                // So it is not held, as asked for.
            }
        }

        @Override
        public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
            checkUnused();
            long now = System.nanoTime();
            boolean held = renew(() -> lease.renew(lockAtMostFor));
            // Not before: after an error this one is still to be unlocked.
            used = true;
            return held ? Optional.of(new Lock(lease, now, lockAtLeastFor)) : Optional.empty();
        }

        private boolean renew(Callable<Boolean> call) {
            try {
                return call.call();
            } catch (Exception failed) {
                if (failed instanceof InterruptedException) {
                    Thread.currentThread().interrupt();
                }
                throw new IllegalStateException("lock \"" + lease.name() + "\" could not be extended", failed);
            }
        }
    }
}
