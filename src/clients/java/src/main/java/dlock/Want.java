package dlock;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * A request under way: it asks, waits for its turn, and asks again, until it is granted, refused or given
 * up. No thread goes with it: each step is taken by whoever has what it waited for.
 *
 * <p>It is in doubt if it may have been granted what it has not heard of: an answer was lost, or perhaps a
 * turn was. Then it asks for just that; and if it is given up, that is undone. What its owner asks for on the
 * same lock from then on waits until it has ended.
 *
 * <p>All is protected by the session's mutex. Methods are called with that held, unless they say otherwise.
 */
final class Want {
    private static final Lines.Kind HOLDER = new Lines.Kind(
        "SELECT array_agg((SELECT owner FROM %1$sdlock_lease(n) LIMIT 1) ORDER BY i)::text[]"
        + " FROM unnest(?::text[]) WITH ORDINALITY AS e(n, i)");
    private static final String MANY =
        "SELECT %1$sdlock_acquire_each(names => ?::text[], owners => ?::text[], ttl => ?::interval, mode => ?, permits => ?::integer,"
        + " reentry => ?, lock_delay => ?::interval, min_hold => ?::interval, keep => ?::interval)::text[]";
    private static final String ARGUMENTS =
        ", owner => ?, ttl => ?::interval, mode => ?, reentry => ?, lock_delay => ?::interval, min_hold => ?::interval, payload => ?::jsonb";
    private static final Lines.Kind ALONE = Lines.Kind.alone(
        "SELECT %1$sdlock_acquire(?" + ARGUMENTS + ", permits => ?::integer, keep => ?::interval)::text", Lines.ANSWER_WITHIN);
    private static final Lines.Kind ALL = Lines.Kind.alone(
        "SELECT array_to_string(%1$sdlock_acquire_all(?::text[]" + ARGUMENTS + "), ',')", Lines.ANSWER_WITHIN);
    private static final Lines.Kind PATH = Lines.Kind.alone("SELECT %1$sdlock_acquire_path(?" + ARGUMENTS + ")::text", Lines.ANSWER_WITHIN);

    /**
     * How long a request whose answer is not known is sent again, after it was to end; and how soon one is sent
     * again to a server that is away.
     */
    private static final long DOUBT_WITHIN = TimeUnit.SECONDS.toNanos(3);
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(200);

    /** In what intervals to ask again without a place. */
    private static final long SHORTEST_POLL = TimeUnit.MILLISECONDS.toNanos(10);
    private static final long LONGEST_POLL = TimeUnit.MILLISECONDS.toNanos(500);

    /** The token of a turn that never comes. */
    static final String NEVER = "never";

    final Request request; // as it was asked for
    final Session session;
    final String label;
    final String task;
    final String owner;
    final Set<String> keys; // owner and names
    final String place; // the key of its place in a queue, if it can have one
    final CompletableFuture<Lease> granted = new CompletableFuture<>();
    final CompletableFuture<Void> ended = new CompletableFuture<>(); // nothing is left to be done
    private final List<String> names;
    private final Thread thread; // that the lease is of
    private final long until;
    private Lines.Entry entry;
    private boolean heldUp; // by what its owner has given up
    private boolean last; // it does not wait after this answer
    private boolean gone; // given up
    private int counted; // among the requests of the owner: 1
    private boolean late; // it has heard of its grant too late, once
    private boolean placed; // it may have a place
    private boolean inDoubt;
    boolean counts; // a release that was not heard may come late, and end what is entered
    private boolean settles; // the answer to what it asks tells whether it was granted that: no other request is meant
    private long doubtUntil; // the first time: so long it asks again, though it was to end
    private long poll = SHORTEST_POLL;
    private boolean resting; // until there is a turn, or it is time to ask again
    private boolean woken;
    private ScheduledFuture<?> alarm;
    private String turn; // the token of one that has come
    private long turnSent;

    /** The thread that gets the lease, or null. */
    Want(Request request, Thread thread) {
        this.request = request;
        this.thread = thread;
        session = request.session;
        names = request.names;
        label = String.join(", ", names);
        task = request.task == null ? Scope.task() : request.task;
        owner = session.client() + "#" + task;
        until = Background.after(request.limit);
        place = request.what == Request.What.SINGLE ? Session.placeOf(owner, names.get(0)) : null;
        keys = place != null ? Set.of(place) : names.stream().map(name -> Session.placeOf(owner, name)).collect(Collectors.toSet());
        ended.thenRun(() -> keys.forEach(session.waits::ended));
    }

    /** The mutex is not held. */
    Want start() {
        synchronized (session.mutex) {
            session.begin(this);
            begin();
        }
        return this;
    }

    private void begin() {
        heldUp = !gone && keys.stream().anyMatch(key -> session.isHeldUp(key, this::goOn));
        if (heldUp) {
            return;
        }
        count(1);
        if (request.limit > 0 && "deny".equals(request.reentry) && names.stream().anyMatch(name -> session.holds(owner, name))) {
            fail(new LeaseDeadlock("the task would wait for its own lease on \"" + label + "\"", null));
        } else {
            ask();
        }
    }

    /** Count it among the requests of its owner, or not any more: what is given up may end what another such one was granted. */
    private void count(int one) {
        if (one != counted && !(gone && one > 0)) {
            counted = one;
            session.count(keys, one == 0 ? -1 : 1);
        }
    }

    private boolean isAlone() {
        return session.isAlone(keys, counted);
    }

    private void goOn() {
        if (heldUp) {
            begin();
        }
    }

    /** Whoever gives up is told at once; what is granted all the same is released. The mutex may be held. */
    void giveUp(Throwable why) {
        synchronized (session.mutex) {
            gone = true;
            count(0);
            granted.completeExceptionally(why);
            session.holdUp(keys, granted.isCompletedExceptionally() ? ended : granted.join().giveBack());
            goOn();
            if (resting) {
                proceed();
            } else if (entry != null && !(last && placed)) {
                session.lines.withdraw(entry, new CancellationException());
            }
        }
    }

    private long left() {
        return until == Background.FOREVER ? Background.FOREVER : Math.max(until - Background.now(), 0);
    }

    // ---- asking ----

    /** Ask, or have the turn that has come confirmed. */
    private void ask() {
        if (gone && !placed) {
            fail(new CancellationException());
            return;
        }
        last = gone || left() == 0 || NEVER.equals(turn);
        boolean alone = isAlone();
        boolean unheard = alone && session.takeDoubt(keys);
        counts |= unheard;
        boolean doubted = inDoubt || unheard;
        settles = alone;
        inDoubt = false;
        if (turn != null && !turn.equals(NEVER)) {
            confirm(doubted);
            return;
        }
        if (!last && place != null) {
            session.waits.expect(this);
        }
        String keep = Background.interval(last ? 0 : Waits.KEEP);
        String entering = !alone || !(doubted || placed || counts) ? request.reentry : counts ? "count" : "return";
        String ttl = Background.interval(request.ttl);
        String lockDelay = Background.interval(request.lockDelay);
        String minHold = Background.interval(request.minHold);
        if (place != null && request.payload == null) {
            Lines.Kind kind = new Lines.Kind(MANY, ttl, request.mode, request.permits, entering, lockDelay, minHold, keep);
            submit(kind, doubted, names.get(0), owner);
            return;
        }
        Object[] row = {request.what == Request.What.SEVERAL ? names.toArray(String[]::new) : names.get(0), owner, ttl, request.mode,
            entering, lockDelay, minHold, request.payload, request.permits, keep};
        if (place != null) {
            submit(ALONE, doubted, row);
        } else {
            submit(request.what == Request.What.SEVERAL ? ALL : PATH, doubted, Arrays.copyOf(row, row.length - 2));
        }
    }

    /** The answer may come at once, if the entry is withdrawn. */
    private void submit(Lines.Kind kind, boolean doubted, Object... row) {
        entry = session.lines.submit(kind, Lines.ANSWER_WITHIN, answer -> answered(answer, doubted), row);
    }

    /** Was it in doubt before? */
    private void answered(Lines.Answer answer, boolean doubted) {
        synchronized (session.mutex) {
            entry = null;
            if (answer.error() == null && answer.value() != null) {
                granted(answer.value().split(","), answer.sent());
                return;
            }
            placed |= !last && place != null && (answer.error() == null || answer.doubt());
            decide(answer, doubted);
        }
    }

    /** If the work would have to stop at once, it asks again, which extends the lease, or has it granted anew. */
    private void granted(String[] tokens, long sent) {
        if (isOver(sent) && !late && !gone && isAlone()) {
            late = true;
            inDoubt = true;
            ask();
        } else {
            grant(tokens, sent);
        }
    }

    private boolean isOver(long sent) {
        return !request.byHand && Background.now() >= sent + request.ttl - Hold.marginOf(request.ttl);
    }

    /** Wait for a turn, or until it is time to ask again. */
    private void rest(long sent) {
        long moment = until;
        if (placed) {
            session.waits.take(sent);
        } else {
            moment = Background.after(Math.min(poll, left()));
            poll = Math.min(2 * poll, LONGEST_POLL);
        }
        resting = true;
        if (woken || gone) {
            proceed();
        } else if (moment != Background.FOREVER) {
            alarm = Background.at(moment, () -> {
                synchronized (session.mutex) {
                    proceed();
                }
            });
        }
    }

    private void proceed() {
        if (resting) {
            resting = false;
            woken = false;
            Background.cancel(alarm);
            ask();
        }
    }

    /** What to do after an answer that is no lease. */
    private void decide(Lines.Answer answer, boolean doubted) {
        boolean raised = inDoubt; // meanwhile
        Throwable error = answer.error();
        inDoubt |= answer.doubt() || (doubted && (error != null || !settles));
        if (error == null && !last) {
            rest(answer.sent());
        } else if (error == null && NEVER.equals(turn)) {
            fail(new LeaseDeadlock("the wait for \"" + label + "\" would never have ended", null));
        } else if (error == null && !gone && (raised || turn != null)) {
            ask(); // a turn may have come just before
        } else if (error == null) {
            refuse(0);
        } else if (error instanceof CancellationException) {
            ask();
        } else if ("40P01".equals(Lines.state(error)) && raised && !gone) {
            ask(); // perhaps for a lease that it has not heard of
        } else if (error instanceof ServerUnreachable) {
            retry(answer);
        } else {
            fail(Dlock.explain(error).<Throwable>map(known -> known).orElse(error));
        }
    }

    /** The server is away. */
    private void retry(Lines.Answer answer) {
        if (answer.doubt() && doubtUntil == 0) {
            doubtUntil = Background.after(DOUBT_WITHIN);
        }
        if (last && (gone || Background.now() >= doubtUntil)) {
            fail(answer.error());
            return;
        }
        Background.at(Background.after(last ? RETRY_AFTER : Math.min(RETRY_AFTER, left())), () -> {
            synchronized (session.mutex) {
                ask();
            }
        });
    }

    // ---- turns ----

    /** A turn has come, or will never come; false if there is one already. */
    boolean offer(String token, long sent) {
        if (turn != null) {
            return false;
        }
        turn = token;
        turnSent = sent;
        return true;
    }

    /** It is time to ask again. */
    void wake(boolean afterOutage) {
        inDoubt |= afterOutage;
        woken = true;
        proceed();
    }

    /** A turn may have come some time after it was asked for: when was the lease held for sure? */
    private void confirm(boolean doubted) {
        if (Background.now() - turnSent < Math.min(request.ttl / 12, TimeUnit.SECONDS.toNanos(1))) {
            grant(new String[] {turn}, turnSent);
            return;
        }
        session.lines.submit(Lease.RENEW, Lines.ANSWER_WITHIN, answer -> {
            synchronized (session.mutex) {
                if (answer.isTrue()) {
                    grant(new String[] {turn}, answer.sent());
                } else if (answer.error() == null) { // it was lost at once
                    turn = null;
                    inDoubt |= doubted;
                    ask();
                } else {
                    decide(answer, doubted);
                }
            }
        }, names.get(0), turn);
    }

    // ---- the end ----

    /** What is heard of too late, or given up, is given back before that is told. */
    private void grant(String[] tokens, long sent) {
        Map<String, Long> all = new LinkedHashMap<>();
        for (int i = 0; i < tokens.length; i++) {
            all.put(names.get(i), Long.parseLong(tokens[i]));
        }
        Lease lease = new Lease(this, all, sent);
        session.add(lease);
        boolean over = isOver(sent);
        if (!over && !gone && !request.byHand) {
            lease.begin(thread, request.onLost == null ? null : () -> request.onLost.accept(lease));
        }
        close();
        if (!over && granted.complete(lease)) {
            ended.complete(null);
            return;
        }
        session.holdUp(keys, ended);
        lease.giveBack().thenRun(() -> {
            granted.completeExceptionally(new ServerUnreachable("the grant of \"" + label + "\" was heard of too late", null));
            ended.complete(null);
        });
    }

    /** What it may have been granted all the same is ended before that is told. */
    private void fail(Throwable why) {
        boolean alone = isAlone();
        if (inDoubt && !alone) {
            session.doubt(keys, Background.after(request.ttl));
        }
        CompletableFuture<?>[] undone = (alone && (session.takeDoubt(keys) || inDoubt) ? names : List.<String>of()).stream()
            .map(name -> session.undo(owner, name, request.ttl)).toArray(CompletableFuture<?>[]::new);
        session.holdUp(keys, ended);
        CompletableFuture.allOf(undone).thenRun(() -> {
            close();
            granted.completeExceptionally(why);
            ended.complete(null);
        });
    }

    private void close() {
        session.waits.forget(this);
        session.end(this);
        count(0);
        if (turn != null && !turn.equals(NEVER)) {
            session.waits.turn(names.get(0), owner, turn, turnSent); // another one may take it
        }
    }

    /** Say who holds it, or something above it, if somebody still does: from this name on. */
    private void refuse(int from) {
        List<String> places = new ArrayList<>(names);
        if (request.what == Request.What.PATH) {
            String path = names.get(0);
            places.clear();
            for (int end = path.indexOf('/'); end >= 0; end = path.indexOf('/', end + 1)) {
                places.add(path.substring(0, end));
            }
            places.add(path);
        }
        if (gone || from == places.size()) {
            fail(new LeaseRefused("lock \"" + label + "\" is held", null));
            return;
        }
        session.lines.submit(HOLDER, Lines.ANSWER_WITHIN, answer -> {
            synchronized (session.mutex) {
                if (answer.error() == null && answer.value() != null) {
                    fail(new LeaseRefused("lock \"" + label + "\" is held by \"" + answer.value() + "\"", answer.value()));
                } else {
                    refuse(from + 1);
                }
            }
        }, places.get(from));
    }
}
