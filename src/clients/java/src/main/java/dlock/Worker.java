package dlock;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * Works on tasks of a queue, so many at a time, each in a thread of its own. A task whose handler throws has
 * failed; the others are finished. The thread is interrupted if the task is lost.
 */
public final class Worker implements AutoCloseable {
    /** What is done with a task. */
    @FunctionalInterface
    public interface Handler {
        void handle(Task task) throws Exception;
    }

    private static final Lines.Kind CAPTURE = Lines.Kind.alone(
        "SELECT key, token::text, payload::text, priority::text, attempts::text, from_state"
        + " FROM %1$sdlock_task_capture(?, count => ?::integer, from_states => ?::text[], to_state => ?, owner => ?, ttl => ?::interval,"
        + " on_timeout => ?, wait => ?::interval)", Lines.ANSWER_WITHIN);
    private static final int MOST = 1000;

    /** How long a capture waits for tasks; so long, it holds a snapshot, and the end waits for it. */
    private static final long CAPTURE_FOR = TimeUnit.SECONDS.toNanos(1);

    /** After errors. */
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(500);
    private static final long LONGEST_RETRY = TimeUnit.SECONDS.toNanos(10);

    private final Session session;
    private final String queue;
    private final Handler handler;
    private final int concurrency;
    private final Lines captures;
    private long ttl = TimeUnit.MINUTES.toNanos(1);
    private String[] fromStates;
    private String toState = "working";
    private String onTimeout;

    private final CompletableFuture<Void> ended = new CompletableFuture<>();

    // Protected by this.
    private final Set<Task> running = new HashSet<>();
    private boolean started;
    private boolean capturing;
    private boolean stopping;
    private boolean aborted;

    Worker(Session session, String queue, Handler handler, int concurrency) {
        if (concurrency < 1 || concurrency > MOST) {
            throw new IllegalArgumentException("the concurrency must be from 1 to " + MOST);
        }
        this.session = session;
        this.queue = Objects.requireNonNull(queue);
        this.handler = Objects.requireNonNull(handler);
        this.concurrency = concurrency;
        captures = new Lines(session.source, 1, () -> Background.FOREVER);
    }

    /** How long a capture lasts without a renewal; by default a minute. */
    public Worker ttl(Duration span) {
        ttl = Request.span(span, 1000);
        return this;
    }

    /** The states of the tasks to be captured, instead of the queue's. */
    public Worker fromStates(String... names) {
        fromStates = names.clone();
        return this;
    }

    /** The state of a task that is worked on; by default "working". */
    public Worker toState(String name) {
        toState = name;
        return this;
    }

    /** The state of a task whose capture has timed out. */
    public Worker onTimeout(String name) {
        onTimeout = name;
        return this;
    }

    /** Work until stop(). */
    public synchronized Worker start() {
        if (started) {
            throw new IllegalStateException("it has been started already");
        }
        session.begin(this, this::capture);
        started = true;
        capturing = true;
        return this;
    }

    private void capture() {
        long retry = RETRY_AFTER;
        for (int room = awaitRoom(0); room > 0; room = awaitRoom(0)) {
            Lines.Answer answer = captures.askPatiently(CAPTURE, 2 * Lines.ANSWER_WITHIN, queue, Integer.toString(room), fromStates, toState,
                session.client() + "#" + queue, Background.interval(ttl), onTimeout, Background.interval(Math.min(CAPTURE_FOR, ttl / 6)));
            if (answer.error() == null) {
                retry = RETRY_AFTER;
                answer.rows().forEach(row -> begin(new Task(session, captures.schema(), queue, row, ttl, answer.sent())));
            } else {
                Background.LOGGER.log(System.Logger.Level.WARNING, "a worker of queue \"" + queue + "\" goes on", answer.error());
                awaitRoom(retry);
                retry = Math.min(2 * retry, LONGEST_RETRY);
            }
        }
        synchronized (this) {
            capturing = false;
            endIfIdle();
        }
    }

    /** Wait so long, and until fewer tasks run than may: how many fewer; 0 as soon as it stops. */
    private synchronized int awaitRoom(long least) {
        long end = Background.after(least);
        for (long left = least; !stopping && (left > 0 || running.size() == concurrency); left = end - Background.now()) {
            try {
                wait(left > 0 ? left / 1_000_000 + 1 : 0);
            } catch (InterruptedException nobody) {
                // Look again.
            }
        }
        return stopping ? 0 : concurrency - running.size();
    }

    private void begin(Task task) {
        synchronized (this) {
            running.add(task);
        }
        Background.runAnyhow(() -> {
            try {
                task.handle(handler, this);
            } finally {
                synchronized (this) {
                    running.remove(task);
                    notifyAll();
                    endIfIdle();
                }
            }
        });
    }

    private void endIfIdle() {
        if (!capturing && running.isEmpty()) {
            ended.complete(null);
        }
    }

    synchronized boolean isStopping() {
        return stopping;
    }

    /** Are tasks that fail to be given back? */
    synchronized boolean isAborted() {
        return aborted;
    }

    /**
     * Capture no more, and wait for what is under way. After the grace, threads are interrupted; tasks whose handlers throw
     * then are given back as if they had not been captured. Called by a handler, it does not wait.
     */
    public void stop(Duration grace) {
        synchronized (this) {
            stopping = true;
            notifyAll();
            endIfIdle();
        }
        ended.thenRun(() -> {
            captures.close();
            session.end(this);
        });
        if (isHandler()) {
            return;
        }
        Background.patiently(ended, Background.nanos(grace));
        List<Task> late;
        synchronized (this) {
            aborted = true;
            late = List.copyOf(running);
        }
        late.forEach(Task::abort);
        Background.patiently(ended, Background.FOREVER);
    }

    /** Is this called by a handler, which cannot wait for itself? */
    private synchronized boolean isHandler() {
        return running.stream().anyMatch(task -> task.worker == Thread.currentThread());
    }

    /** The same without a limit. */
    @Override
    public void close() {
        stop(ChronoUnit.FOREVER.getDuration());
    }

    /** Wait until it has stopped. */
    public void await() throws InterruptedException {
        try {
            ended.get();
        } catch (ExecutionException never) {
            throw new AssertionError(never);
        }
    }
}
