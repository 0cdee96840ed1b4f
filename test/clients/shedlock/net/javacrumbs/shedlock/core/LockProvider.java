package net.javacrumbs.shedlock.core;

import java.util.Optional;

/** As much of ShedLock's interface as a provider needs. */
public interface LockProvider {
    Optional<SimpleLock> lock(LockConfiguration configuration);
}
