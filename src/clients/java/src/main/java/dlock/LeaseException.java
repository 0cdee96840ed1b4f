package dlock;

/** Why there is no lease, or none any more; or why a write was refused. */
public abstract sealed class LeaseException extends RuntimeException
    permits LeaseRefused, LeaseLost, LeaseDeadlock, ServerUnreachable, ServerUnsupported, SessionClosed, TokenStale, TokenMissing {
    private static final long serialVersionUID = 1L;

    LeaseException(String message, Throwable cause) {
        super(message, cause);
    }
}
