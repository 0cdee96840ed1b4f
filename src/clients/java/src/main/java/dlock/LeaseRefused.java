package dlock;

import java.util.Optional;

/** Somebody else holds the lock. */
public final class LeaseRefused extends LeaseException {
    private static final long serialVersionUID = 1L;

    /** Null if it is not known. */
    private final String holder;

    LeaseRefused(String message, String holder) {
        super(message, null);
        this.holder = holder;
    }

    /** The owner of the lease on the lock, if it still had one. */
    public Optional<String> holder() {
        return Optional.ofNullable(holder);
    }
}
