package dlock;

/** The database has no dlock, or too old a one. */
public final class ServerUnsupported extends LeaseException {
    private static final long serialVersionUID = 1L;

    ServerUnsupported(String message, Throwable cause) {
        super(message, cause);
    }
}
