package dlock;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

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

    private final Semaphore free; // tasks more that may run; and the end has one
    private final Set<Task> running = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean started = new AtomicBoolean();
    private final CompletableFuture<Void> stop = new CompletableFuture<>();
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile boolean aborted;

    Worker(Session session, String queue, Handler handler, int concurrency) {
        if (concurrency < 1 || concurrency > MOST) {
            throw new IllegalArgumentException("the concurrency must be from 1 to " + MOST);
        }
        this.session = session;
        this.queue = Objects.requireNonNull(queue);
        this.handler = Objects.requireNonNull(handler);
        this.concurrency = concurrency;
        free = new Semaphore(concurrency);
        captures = new Lines(session.source, session.mutex, 1, () -> Background.FOREVER);
    }

    /** How long a capture lasts without a renewal; by default a minute. */
    public Worker ttl(Duration span) {
        ttl = Request.span(span, 1000);
        return this;
    }

    /** The states of the tasks to be captured, instead of the queue's. */
    public Worker fromStates(String... names) {
        fromStates = List.of(names).toArray(String[]::new);
        return this;
    }

    /** The state of a task that is worked on; by default "working". */
    public Worker toState(String name) {
        toState = Objects.requireNonNull(name);
        return this;
    }

    /** The state of a task whose capture has timed out. */
    public Worker onTimeout(String name) {
        onTimeout = name;
        return this;
    }

    /** Work until stop(). */
    public Worker start() {
        if (!started.compareAndSet(false, true)) {
            throw new IllegalStateException("it has been started already, or stopped");
        }
        try {
            session.begin(this, this::capture);
        } catch (SessionClosed closed) {
            ended.complete(null);
            throw closed;
        }
        return this;
    }

    private void capture() {
        long retry = RETRY_AFTER;
        for (int room = awaitRoom(); room > 0; room = awaitRoom()) {
            String count = Integer.toString(Math.min(room, concurrency));
            Lines.Answer answer = captures.askPatiently(CAPTURE, 2 * Lines.ANSWER_WITHIN, queue, count, fromStates, toState,
                session.client() + "#" + queue, Background.interval(ttl), onTimeout, Background.interval(Math.min(CAPTURE_FOR, ttl / 6)));
            free.release(answer.isGood() ? room - answer.rows().size() : room);
            if (answer.isGood()) {
                retry = RETRY_AFTER;
                answer.rows().forEach(row -> begin(new Task(session, captures.schema(), queue, row, ttl, answer.sent())));
            } else {
                Background.log(System.Logger.Level.WARNING, "a worker of queue \"" + queue + "\" goes on", answer.error());
                Background.patiently(stop, retry);
                retry = Math.min(2 * retry, LONGEST_RETRY);
            }
        }
        free.acquireUninterruptibly(concurrency);
        ended.complete(null);
    }

    /** Wait until fewer tasks run than may, and take what is free: how many; 0 once it stops. */
    private int awaitRoom() {
        free.acquireUninterruptibly();
        if (stop.isDone() || session.closed) {
            return 0;
        }
        return 1 + free.drainPermits();
    }

    private void begin(Task task) {
        running.add(task);
        Background.runAnyhow(() -> {
            try {
                task.handle(handler, this);
            } finally {
                running.remove(task);
                free.release();
            }
        });
    }

    boolean isStopping() {
        return stop.isDone();
    }

    /** Are tasks that fail to be given back? */
    boolean isAborted() {
        return aborted;
    }

    /**
     * Capture no more, and wait for what is under way. After the grace, threads are interrupted; tasks whose handlers throw
     * then are given back as if they had not been captured. Called by a handler, it does not wait.
     */
    public void stop(Duration grace) {
        if (stop.complete(null)) {
            free.release();
        }
        if (started.compareAndSet(false, true)) {
            ended.complete(null);
        }
        ended.thenRun(() -> {
            captures.close();
            session.end(this);
        });
        if (running.stream().anyMatch(task -> task.worker == Thread.currentThread())) {
            return;
        }
        Background.patiently(ended, Background.nanos(grace));
        aborted = true;
        running.forEach(Task::abort);
        Background.patiently(ended, Background.FOREVER);
    }

    /** The same without a limit. */
    @Override
    public void close() {
        stop(ChronoUnit.FOREVER.getDuration());
    }

    /** Wait until it has stopped. */
    public void await() throws InterruptedException {
        session.mutex.await(ended);
    }
}
