package dlock;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Predicate;
import javax.sql.DataSource;

/**
 * A program's dealings with one server. All of its leases share its connections, of which there are up to
 * two, one more while something waits, and one for each worker. What threads ask for at the same time
 * goes in one statement.
 *
 * <p>Connections come from the source. If it is a pool, it must have room for them beside the work.
 */
public final class Session implements AutoCloseable {
    private static final Lines.Kind ONCE = Lines.Kind.alone("SELECT %1$sdlock_once(?, ?::interval)::text", Lines.ANSWER_WITHIN);
    private static final Lines.Kind FIND = Lines.Kind.urgent(
        "SELECT array_agg((SELECT token FROM %1$sdlock_lease(n) WHERE owner = o LIMIT 1) ORDER BY i)::text[]"
        + " FROM unnest(?::text[], ?::text[]) WITH ORDINALITY AS e(n, o, i)");
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(100);
    private static final long UNDO_WITHIN = TimeUnit.SECONDS.toNanos(3);

    /** What is about to end. */
    private static final class Ends {
        private final List<Runnable> waiting = new ArrayList<>(); // for all of it
        private int missing;
    }

    /** Protects this and what belongs to it: holds, wants, places. */
    final Mutex mutex = new Mutex();
    final DataSource source;
    final Lines lines;
    final Waits waits;
    final Set<Lease> releasing = new HashSet<>(); // what close() waits for
    private final String client;
    private final Set<Hold> holds = new HashSet<>(); // to be renewed
    private final Map<String, List<Lease>> held = new HashMap<>(); // by owner and name
    private final Set<Want> wants = new HashSet<>();
    private final Map<String, Integer> wanted = new HashMap<>(); // how many requests that are not given up: by owner and name
    private final Map<String, Long> unsure = new HashMap<>(); // what may be held without a lease, until then: by owner and name
    private final Map<String, Ends> ending = new HashMap<>(); // what others wait for: by owner and name
    private final Set<AutoCloseable> closing = new LinkedHashSet<>(); // what close() has to end
    private volatile long margin = Background.FOREVER; // the smallest one of what is held
    private final Background.Alarm alarm = new Background.Alarm(this::tick); // for the next renewal or deadline
    private boolean inTrouble; // do renewals fail?
    volatile boolean closed;

    Session(DataSource source, String client) {
        if (client.isEmpty() || client.contains("#")) {
            throw new IllegalArgumentException("a client must be a text without #");
        }
        this.source = source;
        this.client = client;
        lines = new Lines(source, mutex, 2, () -> margin);
        waits = new Waits(this);
    }

    /** The first part of the owners "client#task". */
    public String client() {
        return client;
    }

    // ---- what to ask for ----

    /** A lease on a lock. */
    public Request lease(String name) {
        return new Request(this, Request.What.SINGLE, List.of(name));
    }

    /** On all of the locks, or none. */
    public Request leaseAll(Collection<String> names) {
        return new Request(this, Request.What.SEVERAL, List.copyOf(names));
    }

    /** On a place in a hierarchy, such as "a/b/c". */
    public Request leasePath(String path) {
        return new Request(this, Request.What.PATH, List.of(path));
    }

    /** One of so many permits. */
    public Request semaphore(String name, int permits) {
        Request request = lease(name);
        request.permits = Integer.toString(permits);
        return request;
    }

    /** Present the tokens of leases in a transaction that somebody else has begun. Check the leases before the commit. */
    public void present(Connection connection, Lease... leases) throws SQLException {
        for (Lease lease : leases) {
            lease.check();
        }
        Lease.present(connection, leases);
    }

    /** A token, if this is the first call in this time slot. */
    public OptionalLong once(String name, Duration every) throws SQLException, InterruptedException {
        String token = ask(ONCE, name, Background.interval(Background.nanos(every))).value();
        return token == null ? OptionalLong.empty() : OptionalLong.of(Long.parseLong(token));
    }

    /**
     * Stand for an election, until it is closed: "lead" is called in each term. The request is changed to wait for
     * ever.
     */
    public Election elect(Request request, Election.Lead lead) {
        return new Election(request, lead);
    }

    /** Tell the holder of a lock, at first and then whenever another one is seen, by looking in such intervals. */
    public Watch watch(String name, Duration every, Consumer<Optional<Holder>> see) {
        return new Watch(this, name, Request.span(every, 1_000_000), see);
    }

    /** To work on tasks of a queue, so many at a time, once it is started. */
    public Worker worker(String queue, Worker.Handler handler, int concurrency) {
        return new Worker(this, queue, handler, concurrency);
    }

    /** Give back all but what is renewed by hand, and close the connections. Waits end; elections, watches and workers are closed. */
    @Override
    public void close() {
        List<AutoCloseable> things;
        List<CompletableFuture<?>> ends = new ArrayList<>();
        synchronized (mutex) {
            if (closed) {
                return;
            }
            closed = true;
            things = List.copyOf(closing);
            for (Want want : List.copyOf(wants)) { // first, as one of the things may wait for it
                ends.add(want.ended);
                want.giveUp(new SessionClosed());
            }
        }
        for (AutoCloseable thing : things) {
            try {
                thing.close();
            } catch (Exception failed) {
                Background.log(System.Logger.Level.WARNING, "could not be closed", failed);
            }
        }
        await(ends);
        ends.clear();
        synchronized (mutex) {
            for (Hold hold : List.copyOf(holds)) {
                if (hold instanceof Lease lease) {
                    lease.stop(new SessionClosed());
                    lease.giveBack();
                }
            }
            releasing.forEach(lease -> ends.add(lease.giveBack()));
        }
        await(ends);
        lines.close();
        synchronized (mutex) {
            waits.close();
        }
        Dlock.forget(this);
    }

    private static void await(List<CompletableFuture<?>> ends) {
        Background.patiently(CompletableFuture.allOf(ends.toArray(CompletableFuture<?>[]::new)), Background.FOREVER);
    }

    // ---- for its parts ----

    /** Something that close() waits for; the mutex is held. */
    void begin(Want want) {
        checkOpen();
        wants.add(want);
    }

    /** One more request for these locks, or one less. */
    void count(Set<String> keys, int one) {
        keys.forEach(key -> wanted.merge(key, one, (count, more) -> count + more == 0 ? null : count + more));
    }

    void end(Want want) {
        wants.remove(want);
    }

    /** Begin something that close() closes. */
    void begin(AutoCloseable thing, Runnable task) {
        synchronized (mutex) {
            checkOpen();
            closing.add(thing);
        }
        Background.runSoon(task);
    }

    void end(AutoCloseable thing) {
        synchronized (mutex) {
            closing.remove(thing);
        }
    }

    private void checkOpen() {
        if (closed) {
            throw new SessionClosed();
        }
    }

    /** The answer, or the error as an exception. */
    Lines.Answer ask(Lines.Kind kind, Object... row) throws SQLException, InterruptedException {
        synchronized (mutex) {
            checkOpen();
        }
        Lines.Answer answer = lines.ask(kind, row);
        if (answer.error() != null) {
            throw Request.raise(answer.error());
        }
        return answer;
    }

    /** Ask until that is enough, or until then; the mutex is held when it is told. Null: there was no time left. */
    void insist(Lines.Kind kind, long until, Predicate<Lines.Answer> enough, Consumer<Lines.Answer> then, Object... row) {
        long left = until - Background.now();
        if (left <= 0) {
            synchronized (mutex) {
                then.accept(null);
            }
            return;
        }
        lines.submit(kind, left, answer -> {
            synchronized (mutex) {
                if (enough.test(answer)) {
                    then.accept(answer);
                    return;
                }
            }
            Background.at(Background.after(RETRY_AFTER), () -> {
                synchronized (mutex) {
                    if (enough.test(answer)) { // by now
                        then.accept(answer);
                    } else {
                        insist(kind, until, enough, then, row);
                    }
                }
            });
        }, row);
    }

    // ---- what is held; the mutex is held ----

    static String placeOf(String owner, String name) {
        return owner + "\0" + name;
    }

    /** Has this owner a lease on the lock? */
    boolean holds(String owner, String name) {
        return held.containsKey(placeOf(owner, name));
    }

    /** Has the owner no lease on these locks, and no more requests than so many, which might be meant instead? */
    boolean isAlone(Set<String> keys, int own) {
        return keys.stream().noneMatch(key -> held.containsKey(key) || wanted.getOrDefault(key, 0) > own);
    }

    /** The owner may hold these without having heard of it, until then. */
    void doubt(Set<String> keys, long until) {
        unsure.values().removeIf(end -> end < Background.now());
        keys.forEach(key -> unsure.merge(key, until, Math::max));
    }

    /** May it be so? The caller finds out. */
    boolean takeDoubt(Set<String> keys) {
        return keys.stream().map(unsure::remove).filter(until -> until != null && until > Background.now()).count() > 0;
    }

    void add(Lease lease) {
        lease.tokens.keySet().forEach(name -> held.computeIfAbsent(placeOf(lease.owner(), name), none -> new ArrayList<>()).add(lease));
    }

    void remove(Lease lease) {
        lease.tokens.keySet().forEach(name -> held.computeIfPresent(placeOf(lease.owner(), name), (key, leases) -> {
            leases.remove(lease);
            return leases.isEmpty() ? null : leases;
        }));
    }

    /** Has it a lease with this token? */
    boolean holds(String owner, String name, String token) {
        return held.getOrDefault(placeOf(owner, name), List.of()).stream().anyMatch(lease -> lease.has(name, token));
    }

    /**
     * End what an owner may hold without having heard of it. It is found first, and released by its token: whenever
     * the server gets to do that, it ends nothing that is granted later. The result says when that is done, or in vain.
     */
    CompletableFuture<Void> undo(String owner, String name, long ttl) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        long until = Background.after(UNDO_WITHIN);
        Background.at(until, () -> {
            synchronized (mutex) {
                if (!done.isDone()) {
                    doubt(Set.of(placeOf(owner, name)), Background.after(ttl));
                    done.complete(null);
                }
            }
        });
        insist(FIND, until, Lines.Answer::isGood, found -> {
            if (found != null && found.value() == null) {
                done.complete(null);
            } else if (found != null) {
                insist(Lease.RELEASE, until, Lines.Answer::isGood, released -> {
                    if (released != null) {
                        done.complete(null);
                    }
                }, name, found.value());
            }
        }, name, owner);
        return done;
    }

    /**
     * Until that end, which comes with the mutex held, what the owner asks for on these locks waits: it would be refused by
     * a lease that is about to go.
     */
    void holdUp(Set<String> keys, CompletableFuture<?> end) {
        keys.forEach(key -> ending.computeIfAbsent(key, none -> new Ends()).missing++);
        end.thenRun(() -> keys.forEach(key -> {
            Ends ends = ending.get(key);
            if (--ends.missing == 0) {
                ending.remove(key);
                ends.waiting.forEach(Runnable::run);
            }
        }));
    }

    /** Is it to wait? Then that is called afterwards. */
    boolean isHeldUp(String key, Runnable then) {
        Ends ends = ending.get(key);
        return ends != null && ends.waiting.add(then);
    }

    void keep(Hold hold) {
        holds.add(hold);
        margin = Math.min(margin, hold.margin);
        arm(hold.next());
    }

    void forget(Hold hold) {
        holds.remove(hold);
        if (holds.isEmpty()) {
            margin = Background.FOREVER;
        }
    }

    /** Something will be to be done at this moment. */
    void arm(long moment) {
        alarm.set(moment);
    }

    /** Stop what is late, and renew what is due, or soon will be. */
    private void tick() {
        synchronized (mutex) {
            long now = Background.now();
            long smallest = Background.FOREVER;
            long next = Background.FOREVER;
            for (Hold hold : List.copyOf(holds)) {
                if (hold.reason() == null) {
                    hold.renewBy(now + hold.every / 2);
                    smallest = Math.min(smallest, hold.margin);
                    next = Math.min(next, hold.next());
                }
            }
            margin = smallest;
            arm(next);
        }
    }

    /** Renewals fail, or go on. */
    void troubled(Throwable failure) {
        if (failure != null && !inTrouble) {
            Background.log(System.Logger.Level.WARNING, "renewals fail", failure);
        }
        inTrouble = failure != null;
    }
}
