package net.javacrumbs.shedlock.core;

import java.time.Duration;
import java.time.Instant;

/** What a provider is asked for. */
public class LockConfiguration {
    private final String name;
    private final Duration longest;
    private final Duration shortest;

    public LockConfiguration(Instant createdAt, String name, Duration lockAtMostFor, Duration lockAtLeastFor) {
        this.name = name;
        longest = lockAtMostFor;
        shortest = lockAtLeastFor;
    }

    public String getName() {
        return name;
    }

    public Duration getLockAtMostFor() {
        return longest;
    }

    public Duration getLockAtLeastFor() {
        return shortest;
    }
}
