package dlock;

/** A write was refused, as a later holder has written (LK001): stop. */
public final class TokenStale extends LeaseException {
    private static final long serialVersionUID = 1L;

    TokenStale(String message, Throwable cause) {
        super(message, cause);
    }
}
