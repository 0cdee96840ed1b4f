package dlock;

/** The wait would never have ended (40P01). */
public final class LeaseDeadlock extends LeaseException {
    private static final long serialVersionUID = 1L;

    LeaseDeadlock(String message, Throwable cause) {
        super(message, cause);
    }
}
