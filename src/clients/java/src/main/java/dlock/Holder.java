package dlock;

/**
 * Who holds a lock.
 *
 * @param payload JSON, or null
 */
public record Holder(long token, String owner, String payload) {
}
