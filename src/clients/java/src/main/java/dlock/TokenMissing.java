package dlock;

/** A write was refused, as its transaction presents no token (LK003). */
public final class TokenMissing extends LeaseException {
    private static final long serialVersionUID = 1L;

    TokenMissing(String message, Throwable cause) {
        super(message, cause);
    }
}
