package net.javacrumbs.shedlock.core;

/** Its locks can be extended. */
public interface ExtensibleLockProvider extends LockProvider {
}
