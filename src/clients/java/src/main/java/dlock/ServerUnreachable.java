package dlock;

/** The server could not be asked in time, or did not answer. */
public final class ServerUnreachable extends LeaseException {
    private static final long serialVersionUID = 1L;

    ServerUnreachable(String message, Throwable cause) {
        super(message, cause);
    }
}
