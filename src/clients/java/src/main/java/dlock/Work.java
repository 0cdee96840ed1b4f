package dlock;

/** Work with a lease, or with a connection, that may throw what it likes. */
@FunctionalInterface
public interface Work<A, R, E extends Exception> {
    R run(A with) throws E;
}
