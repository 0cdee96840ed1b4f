package dlock;

import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** What to ask for. It can be asked for again and again. */
public final class Request implements Cloneable {
    /** What is asked for. */
    enum What {
        SINGLE, SEVERAL, PATH
    }

    final Session session;
    final What what;
    final List<String> names;
    long ttl = TimeUnit.MINUTES.toNanos(1);
    long limit;
    String mode = "exclusive";
    String permits;
    String reentry = "deny";
    String task;
    long lockDelay;
    long minHold;
    String payload;
    boolean byHand;
    Consumer<Lease> onLost;

    Request(Session session, What what, List<String> names) {
        this.session = session;
        this.what = what;
        this.names = List.copyOf(names);
        if (names.isEmpty()) {
            throw new IllegalArgumentException("no name");
        }
        for (String name : names) {
            if (!StandardCharsets.UTF_8.newEncoder().canEncode(name)) {
                throw new IllegalArgumentException("a name is no Unicode text");
            }
        }
    }

    @Override
    protected Request clone() {
        try {
            return (Request) super.clone();
        } catch (CloneNotSupportedException never) {
            throw new AssertionError(never);
        }
    }

    static long span(Duration span, long least) {
        long nanos = Background.nanos(span);
        if (nanos < least) {
            throw new IllegalArgumentException("a span of time must not be negative, and a ttl not zero");
        }
        return nanos;
    }

    /** How long the lease lasts without a renewal; by default a minute. */
    public Request ttl(Duration span) {
        ttl = span(span, 1000);
        return this;
    }

    /** Wait so long for the lock; by default not at all. */
    public Request waitFor(Duration span) {
        limit = span(span, 0);
        return this;
    }

    /** Wait for the lock until the thread is interrupted. */
    public Request waitForever() {
        limit = Background.FOREVER;
        return this;
    }

    /** The mode of the lock, "shared" and others, as of dlock_acquire(); by default "exclusive". */
    public Request mode(String name) {
        mode = Objects.requireNonNull(name);
        return this;
    }

    /** The task may enter its own lock again. */
    public Request reenter() {
        reentry = "count";
        return this;
    }

    /**
     * The task, of the owner "client#task". By default that of the lease which the thread has acquired before
     * and not released yet; or else a new one. {@link Lease#task} is for other threads of the same work.
     */
    public Request task(String name) {
        task = Objects.requireNonNull(name);
        return this;
    }

    /** How long the lock stays closed after the lease was lost. */
    public Request lockDelay(Duration span) {
        lockDelay = span(span, 0);
        return this;
    }

    /** A release takes effect no earlier than this after the grant. */
    public Request minHold(Duration span) {
        minHold = span(span, 0);
        return this;
    }

    /** JSON that is shown with the lease; null is none. Such requests go in statements of their own. */
    public Request payload(String json) {
        payload = json;
        return this;
    }

    /** The lease is not renewed but by {@link Lease#renew}; when it has expired, nobody is told. */
    public Request byHand() {
        byHand = true;
        return this;
    }

    /** Called, by another thread, when the work is to end. */
    public Request onLost(Consumer<Lease> call) {
        onLost = call;
        return this;
    }

    /**
     * Run work under the lease, and release it when the work has ended. If it is lost before, the thread is
     * interrupted. That interrupt does not outlast the work, and whatever the work throws then is
     * suppressed by what is thrown here.
     *
     * @return what the work returns
     * @throws LeaseLost the work was stopped, or has ended too late
     * @throws ServerUnreachable the same, for that reason
     * @throws SessionClosed the same
     */
    public <R, E extends Exception> R run(Work<Lease, R, E> work) throws E, SQLException, InterruptedException {
        Lease lease = acquire();
        R result;
        try {
            result = work.run(lease);
        } catch (Throwable failure) {
            try {
                lease.close();
            } catch (LeaseException ended) {
                if (failure instanceof Error) {
                    failure.addSuppressed(ended);
                } else {
                    ended.addSuppressed(failure);
                    throw ended;
                }
            }
            throw failure;
        }
        lease.close();
        return result;
    }

    /**
     * Acquire the lease, and have it renewed until it is closed. This thread is interrupted if it is lost. In a
     * try statement, what close() throws is suppressed by what the work throws; see {@link #run}.
     *
     * @throws LeaseRefused somebody else holds the lock
     * @throws LeaseDeadlock the wait would never have ended
     * @throws ServerUnreachable the server does not answer
     * @throws ServerUnsupported the database has no dlock
     * @throws SQLException any other error of the server
     * @throws InterruptedException the thread was interrupted; nothing is held
     */
    public Lease acquire() throws SQLException, InterruptedException {
        Want want = Lines.drive(new Want(clone(), byHand ? null : Thread.currentThread())::start);
        try {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            session.mutex.await(want.granted);
            Lease lease = want.granted.get();
            if (!byHand) {
                Scope.enter(lease);
            }
            return lease;
        } catch (InterruptedException givenUp) {
            want.giveUp(new CancellationException());
            throw givenUp;
        } catch (ExecutionException failed) {
            throw raise(failed.getCause());
        }
    }

    /** An error that many threads may be told of is thrown by each as its own. */
    static SQLException raise(Throwable error) {
        if (error instanceof ServerUnreachable) {
            throw new ServerUnreachable(error.getMessage(), error.getCause());
        } else if (error instanceof ServerUnsupported) {
            throw new ServerUnsupported(error.getMessage(), null);
        } else if (error instanceof SQLException failed) {
            return failed;
        } else if (error instanceof Error failed) {
            throw failed;
        }
        error.fillInStackTrace();
        throw (RuntimeException) error;
    }

    /**
     * The same without a thread that waits. The lease belongs to no thread, and interrupts none. A future
     * that is cancelled, or completed by its user, as by orTimeout(), gives up.
     */
    public CompletableFuture<Lease> acquireAsync() {
        CompletableFuture<Lease> result = new CompletableFuture<>();
        Want want = new Want(clone(), null);
        want.granted.whenCompleteAsync((lease, error) -> {
            if (error != null) {
                result.completeExceptionally(error);
            } else if (!result.complete(lease)) {
                lease.giveBack();
            }
        }, Background::runSoon);
        result.whenComplete((lease, error) -> {
            if (!want.granted.isDone()) {
                want.giveUp(new CancellationException());
            }
        });
        try {
            want.start();
        } catch (SessionClosed closed) {
            want.granted.completeExceptionally(closed);
        }
        return result;
    }
}
