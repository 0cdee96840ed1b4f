package dlock;

import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
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
 * <p>lockAtMostFor is the ttl, lockAtLeastFor the least time to hold. As ShedLock has it, a lock
 * is renewed by extend() alone, which KeepAliveLockProvider calls; extend() leaves the least time
 * to hold as it is.
 */
public final class DlockLockProvider implements ExtensibleLockProvider {
    private final DataSource source;

    public DlockLockProvider(DataSource source) {
        this.source = source;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        try {
            return Optional.of(new Lock(Dlock.lease(source, configuration.getName(), configuration.getLockAtMostFor())
                .minHold(configuration.getLockAtLeastFor()).acquireOnce()));
        } catch (Dlock.LeaseRefused held) {
            return Optional.empty();
        } catch (InterruptedException givenUp) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        } catch (SQLException failed) {
            throw new IllegalStateException("lock \"" + configuration.getName() + "\" could not be acquired", failed);
        }
    }

    private static final class Lock implements SimpleLock {
        private final Dlock.Lease lease;
        private boolean used;

        Lock(Dlock.Lease lease) {
            this.lease = lease;
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
            try {
                lease.close();
            } catch (Dlock.LeaseLost expired) {
                // So it is not held, as asked for.
            }
        }

        @Override
        public Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
            checkUnused();
            try {
                boolean held = lease.renew(lockAtMostFor);
                // Not before: after an error this one is still to be unlocked.
                used = true;
                return held ? Optional.of(new Lock(lease)) : Optional.empty();
            } catch (SQLException failed) {
                throw new IllegalStateException("lock \"" + lease.name() + "\" could not be extended", failed);
            }
        }
    }
}
