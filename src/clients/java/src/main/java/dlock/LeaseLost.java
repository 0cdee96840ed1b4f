package dlock;

/** The server says that the lease is not held any more (LK002). */
public final class LeaseLost extends LeaseException {
    private static final long serialVersionUID = 1L;

    LeaseLost(String message, Throwable cause) {
        super(message, cause);
    }
}
