package dlock;

/** The session has been closed, perhaps while the lock was waited for. */
public final class SessionClosed extends LeaseException {
    private static final long serialVersionUID = 1L;

    SessionClosed() {
        super("the session is closed", null);
    }
}
