package dlock;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A candidate, in a thread of its own, until it is closed. */
public final class Election implements AutoCloseable {
    /**
     * What a leader does in its term. It is interrupted at the end of that, and resigns by returning. To throw
     * is to resign, too.
     */
    @FunctionalInterface
    public interface Lead {
        void lead(Lease lease) throws Exception;
    }

    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(500);

    private final Session session;
    private final Request request;
    private final Lead lead;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final CompletableFuture<Void> stop = new CompletableFuture<>();
    private volatile Lease lease;
    private Thread thread; // protected by this

    Election(Request request, Lead lead) {
        this.session = request.session;
        this.request = request.waitForever();
        this.lead = lead;
        session.begin(this, this::campaign);
    }

    private void campaign() {
        synchronized (this) {
            thread = Thread.currentThread();
        }
        try {
            while (!stop.isDone() && !session.closed) {
                stand();
            }
        } finally {
            synchronized (this) {
                thread = null;
            }
            ended.complete(null);
        }
    }

    /** For one term. */
    private void stand() {
        try {
            request.run(term -> {
                lease = term;
                try {
                    lead.lead(term);
                } finally {
                    lease = null;
                }
                return null;
            });
        } catch (LeaseLost over) {
            // The next term.
        } catch (Throwable failed) {
            if (!stop.isDone() && !session.closed) {
                Background.log(System.Logger.Level.WARNING, "the election of \"" + request.names.get(0) + "\" goes on", failed);
                Background.patiently(stop, RETRY_AFTER);
            }
        }
    }

    /** The lease of the leader, if it is this one. */
    public Optional<Lease> lease() {
        return Optional.ofNullable(lease);
    }

    /** Resign, if it leads, and do not stand again. */
    @Override
    public void close() {
        boolean own;
        synchronized (this) {
            stop.complete(null);
            own = thread == Thread.currentThread();
            if (thread != null) {
                thread.interrupt();
            }
        }
        if (!own) {
            Background.patiently(ended, Background.FOREVER);
        }
        session.end(this);
    }

    /** Wait until it is closed. */
    public void await() throws InterruptedException {
        session.mutex.await(ended);
    }
}
