package dlock;

import java.lang.reflect.Method;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.UnaryOperator;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** What sessions do whatever the server says: each method whose name begins with "test" is one. */
final class SessionTest {
    private static final Duration HOUR = Duration.ofHours(1);

    private final FakeServer server = new FakeServer();
    private final Session session = Dlock.open(server.source(), "client");

    private static void expect(boolean good, Object what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    /** Requests, in this order. */
    private List<CompletableFuture<Lease>> ask(UnaryOperator<Request> set, String... names) {
        List<CompletableFuture<Lease>> leases = new ArrayList<>();
        for (String name : names) {
            int before = session.lines.queued() + server.count();
            leases.add(set.apply(session.lease(name)).acquireAsync());
            while (session.lines.queued() + server.count() <= before) {
                LockSupport.parkNanos(100_000);
            }
        }
        return leases;
    }

    /** Nothing is asked any more. */
    private void awaitIdle() {
        while (!session.lines.isIdle()) {
            LockSupport.parkNanos(100_000);
        }
    }

    private List<CompletableFuture<Lease>> ask(String... names) {
        return ask(request -> request, names);
    }

    /** A lease that is held. */
    private Lease held(String name) throws Exception {
        CompletableFuture<Lease> lease = ask(name).get(0);
        server.next("acquire_each", name).answer("7");
        return lease.get();
    }

    private static CompletableFuture<Throwable> close(Lease lease) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                lease.close();
                return null;
            } catch (LeaseException lost) {
                return lost;
            }
        }, task -> new Thread(task).start());
    }

    private static <E extends Throwable> E fails(Class<E> kind, CompletableFuture<?> result) {
        try {
            result.join();
        } catch (CompletionException failed) {
            if (kind.isInstance(failed.getCause())) {
                return kind.cast(failed.getCause());
            }
            throw new AssertionError("not " + kind, failed.getCause());
        }
        throw new AssertionError("no " + kind);
    }

    // ---- coalescing ----

    void testCoalescing() throws Exception {
        List<CompletableFuture<Lease>> asked = ask("a", "b", "c");
        FakeServer.Asked first = server.next("acquire_each", "a");
        asked.addAll(ask(request -> request.ttl(HOUR), "d"));
        server.none();
        first.answer("1");
        server.next("acquire_each", "b", "c").answer("2,3");
        server.next("acquire_each", "d").answer("4");
        expect(asked.get(0).get().task().startsWith("~"), "a task that a program may number");
        List<CompletableFuture<Throwable>> released = new ArrayList<>();
        for (int i = 0; i < asked.size(); i++) {
            expect(asked.get(i).get().token() == i + 1, i);
            if (i == 0) {
                awaitIdle();
            }
            int before = session.lines.queued() + server.count();
            released.add(close(asked.get(i).get()));
            while (session.lines.queued() + server.count() <= before) {
                LockSupport.parkNanos(100_000);
            }
        }
        server.next("release_each", "a").answer("true");
        server.next("release_each", "b", "c", "d").answer("true,true,true");
        for (CompletableFuture<Throwable> end : released) {
            expect(end.get() == null, end);
        }
    }

    /** At most 1000 in a statement; without a limit of time, as there may be little of that. */
    void testBatches() throws Exception {
        Lines.Kind kind = new Lines.Kind("SELECT %1$sdlock_many(?::text[])::text[]", false, false, Background.FOREVER, List.of());
        AtomicInteger answered = new AtomicInteger();
        session.lines.submit(kind, Background.FOREVER, answer -> answered.incrementAndGet(), "x");
        FakeServer.Asked statement = server.next("many", "x");
        for (int i = 0; i < 2500; i++) {
            session.lines.submit(kind, Background.FOREVER, answer -> answered.incrementAndGet(), "n" + i);
        }
        for (int size : new int[] {1000, 1000, 500}) {
            statement.answerAll("1");
            statement = server.any(false);
            expect(statement.array(1).length == size, statement.array(1).length + " in a statement");
        }
        statement.answerAll("1");
        awaitIdle();
        expect(answered.get() == 2501, answered);
    }

    /** What goes off early leaves no timer behind for a later moment. */
    void testTimers() {
        Background.Alarm alarm = new Background.Alarm(() -> { });
        for (int i = 0; i < 20_000; i++) {
            alarm.set(Background.FOREVER / 2 - i);
        }
        expect(Background.timers.getQueue().size() < 10_000, Background.timers.getQueue().size());
    }

    /** A slow grant holds up neither releases nor renewals. */
    void testSlowGrant() throws Exception {
        Lease lease = held("job");
        CompletableFuture<Lease> slow = ask("slow").get(0);
        FakeServer.Asked granting = server.next("acquire_each", "slow");
        server.next("renew_each", "job").answer("true");
        expect(server.connections.get() == 2, server.connections);
        CompletableFuture<Throwable> released = close(lease);
        server.next("release_each", "job").answer("true");
        expect(released.get() == null, released);
        granting.answer("NULL");
        fails(LeaseRefused.class, slow);
    }

    /** An error is traced to the request whose it is; what is everybody's is told to everybody. */
    void testErrorOfOne() throws Exception {
        List<CompletableFuture<Lease>> asked = ask("x", "a", "b", "", "c", "d");
        server.next("acquire_each", "x").answer("1");
        server.next("acquire_each", "a", "b", "", "c", "d").fail("22023");
        server.next("acquire_each", "a", "b").answer("2,3");
        server.next("acquire_each", "", "c", "d").fail("22023");
        server.next("acquire_each", "").fail("22023");
        server.next("acquire_each", "c", "d").answer("4,5");
        for (int i = 0; i < asked.size(); i++) {
            if (i == 3) {
                expect(fails(SQLException.class, asked.get(i)).getSQLState().equals("22023"), "the error");
            } else {
                asked.get(i).get();
            }
        }
        awaitIdle();
        asked = ask("e", "f", "g");
        server.next("acquire_each", "e").fail("42501");
        server.next("acquire_each", "f", "g").fail("42501");
        asked.forEach(result -> expect(fails(SQLException.class, result).getSQLState().equals("42501"), "the error"));
        awaitIdle();

        // As the driver tells of a connection that is lost, whose statement may have succeeded.
        asked = ask("x", "h", "i");
        server.next("acquire_each", "x").answer("6");
        server.next("acquire_each", "h", "i").fail("08006");
        for (int left = 2; left > 0;) {
            FakeServer.Asked again = server.any(false);
            expect(again.reentry().equals("return"), again.reentry());
            left -= again.array(1).length;
            again.answerAll("7");
        }
        for (CompletableFuture<Lease> each : asked) {
            each.get();
        }
    }

    /** What is not where it was is everybody's error, and looked for again. */
    void testLookAgain() throws Exception {
        for (String gone : new String[] {"42883", "3F000"}) {
            int before = server.connections.get();
            List<CompletableFuture<Lease>> asked = ask("a", "b", "c");
            server.next("acquire_each", "a").fail(gone);
            server.next("acquire_each", "b", "c").fail(gone);
            asked.forEach(result -> expect(fails(SQLException.class, result).getSQLState().equals(gone), "the error"));
            awaitIdle();
            expect(server.connections.get() == before + 2, server.connections);
        }
    }

    /** What is given up, in whatever way, is taken out, or released once it is granted. */
    void testCancel() throws Exception {
        List<CompletableFuture<Lease>> asked = ask("a", "b", "c");
        FakeServer.Asked granting = server.next("acquire_each", "a");
        asked.get(0).cancel(false);
        asked.get(1).completeExceptionally(new TimeoutException());
        granting.answer("5");
        Map<String, FakeServer.Asked> both = new HashMap<>();
        for (int i = 0; i < 2; i++) {
            FakeServer.Asked next = server.any(false);
            both.put(next.toString(), next);
        }
        both.get("release_each a").answer("true");
        both.get("acquire_each c").answer("6");
        expect(asked.get(2).get().token() == 6, "the other one");
        server.none();
    }

    /** A thread makes the statement that it waits for itself, if there is a connection; not if it is interrupted. */
    void testOwnThread() throws Exception {
        for (boolean interrupted : new boolean[] {false, true}) {
            Lease lease = held("a");
            awaitIdle();
            Thread thread = new Thread(() -> {
                if (interrupted) {
                    Thread.currentThread().interrupt();
                }
                lease.close();
            });
            thread.start();
            FakeServer.Asked release = server.next("release_each", "a");
            expect((release.thread == thread) != interrupted, release.thread);
            release.answer("true");
            thread.join();
        }
    }

    /** A thread that does not make its statement itself, as it is interrupted, does not end it either. */
    void testInterruptedBefore() throws Exception {
        held("a");
        awaitIdle();
        interrupted(() -> {
            Thread.currentThread().interrupt();
            session.lease("b").acquire();
        }).get();
        server.next("acquire_each", "b").answer("8");
        server.next("release_each", "b").answer("true");
    }

    /** An interrupt is what a call ends with whose statement it ends, not an error of the connection. */
    void testInterrupt() throws Exception {
        CompletableFuture<Lease> lease = ask(Request::byHand, "a").get(0);
        server.next("acquire_each", "a").answer("7");
        Lease held = lease.get();
        for (Body call : new Body[] {() -> session.once("slot", HOUR), () -> held.renew(HOUR), () -> held.leave(HOUR)}) {
            awaitIdle();
            CompletableFuture<Void> end = interrupted(call);
            server.any(false).thread.interrupt();
            end.get();
            held("b"); // there is a connection again
        }
    }

    private interface Body {
        void run() throws Exception;
    }

    /** In a thread of its own: an interrupt is what it ends with. */
    private static CompletableFuture<Void> interrupted(Body body) {
        return CompletableFuture.runAsync(() -> {
            try {
                body.run();
            } catch (InterruptedException asTold) {
                return;
            } catch (Exception failed) {
                throw new AssertionError(failed);
            }
            throw new AssertionError("no interrupt");
        }, task -> new Thread(task).start());
    }

    // ---- what is in doubt ----

    /** The answer to this request is an error: how it was asked. */
    private String fail(String name, String sqlState) throws InterruptedException {
        FakeServer.Asked statement = server.next("acquire_each", name);
        statement.fail(sqlState);
        return statement.reentry();
    }

    /** An answer that is lost: what was granted is asked for, or ended if nobody wants it any more. */
    void testLostAnswer() throws Exception {
        CompletableFuture<Lease> asked = ask(Request::byHand, "a").get(0);
        expect(fail("a", "57P01").equals("deny"), "the first request");
        expect(fail("a", "57P01").equals("return"), "the second one");
        FakeServer.Asked granting = server.next("acquire_each", "a");
        expect(granting.reentry().equals("return"), "the third one");
        granting.answer("2");
        expect(asked.get().token() == 2, asked);

        asked = ask(request -> request.task("own"), "b").get(0);
        fail("b", "57P01");
        granting = server.next("acquire_each", "b");
        asked.cancel(false);
        granting.fail("57P01");
        server.next("lease", "b").fail("57P01");
        server.next("lease", "b").answer("3");
        FakeServer.Asked release = server.next("release_each", "b");
        expect(release.array(2)[0].equals("3"), "the token that was found");
        release.fail("57P01");
        server.next("release_each", "b").answer("false");

        // Not if a standby has answered.
        asked = ask("c").get(0);
        fail("c", "25006");
        fails(ServerUnreachable.class, asked);
        session.close(); // when all has ended
        server.none();
    }

    /** What a task asks for again waits until what it gave up has ended, and is no reason not to undo that. */
    void testAgain() throws Exception {
        UnaryOperator<Request> own = request -> request.task("own").byHand();
        held("x");
        awaitIdle();
        CompletableFuture<Void> end = interrupted(() -> own.apply(session.lease("a")).acquire());
        server.next("acquire_each", "a").thread.interrupt();
        end.get();
        CompletableFuture<Lease> again = own.apply(session.lease("a")).acquireAsync();
        CompletableFuture<Lease> third = own.apply(session.leaseAll(List.of("c", "a"))).acquireAsync();
        server.next("lease", "a").answer("3");
        FakeServer.Asked release = server.next("release_each", "a");
        expect(release.array(2)[0].equals("3"), "the token that was found");
        server.none();
        release.answer("true");
        server.next("acquire_each", "a").answer("4");
        expect(again.get().token() == 4, again);
        server.next("acquire_all", "c", "a").fail("22023");
        fails(SQLException.class, third);

        // It was granted just before.
        Want want = new Want(own.apply(session.lease("d")), null).start();
        server.next("acquire_each", "d").answer("5");
        want.granted.get();
        want.giveUp(new CancellationException());
        again = own.apply(session.lease("d")).acquireAsync();
        release = server.next("release_each", "d");
        server.none();
        release.answer("true");
        server.next("acquire_each", "d").answer("6");
        expect(again.get().token() == 6, again);
    }

    /** A grant that is heard of too late is asked for once more, then given back before that is told; so it refuses nothing. */
    void testLateGrant() throws Exception {
        CompletableFuture<Lease> late = ask(request -> request.task("own").ttl(Duration.ofNanos(1000)), "a").get(0);
        server.next("acquire_each", "a").answer("3");
        FakeServer.Asked granting = server.next("acquire_each", "a");
        expect(granting.reentry().equals("return"), "the second request");
        granting.answer("3");
        FakeServer.Asked release = server.next("release_each", "a");
        CompletableFuture<Lease> again = session.lease("a").task("own").byHand().acquireAsync();
        server.none();
        expect(!late.isDone(), "not given back yet");
        release.answer("true");
        server.next("acquire_each", "a").answer("4");
        fails(ServerUnreachable.class, late);
        expect(again.get().token() == 4, again);
    }

    /** What may have been granted is ended before the task asks for that lock again, if it is not too late for that. */
    void testUndo() throws Exception {
        UnaryOperator<Request> own = request -> request.task("own").byHand();
        doubt(own, "a");
        FakeServer.Asked find = server.next("lease", "a");
        CompletableFuture<Lease> asked = own.apply(session.lease("a")).acquireAsync();
        CompletableFuture<Lease> both = own.apply(session.leaseAll(List.of("b", "a"))).waitForever().acquireAsync();
        CompletableFuture<Lease> givenUp = own.apply(session.lease("a")).waitForever().acquireAsync();
        expect(givenUp.cancel(false), "given up");
        server.none();
        CompletableFuture<Lease> another = ask("a").get(0); // of another task
        server.next("acquire_each", "a").answer("NULL");
        fails(LeaseRefused.class, another);
        find.answer("3");
        FakeServer.Asked release = server.next("release_each", "a");
        expect(release.array(2)[0].equals("3"), "the token that was found");
        server.none();
        release.answer("true");
        server.next("acquire_each", "a").answer("4");
        expect(asked.get().token() == 4, asked);
        server.next("acquire_all", "b", "a").fail("22023");
        fails(SQLException.class, both);

        // What is found too late may have been granted since.
        doubt(own, "c");
        find = server.next("lease", "c");
        asked = own.apply(session.lease("c")).acquireAsync();
        FakeServer.Asked again = server.next("acquire_each", "c"); // after three seconds
        expect(again.reentry().equals("count"), "after an undo in vain");
        again.answer("5");
        expect(asked.get().token() == 5, asked);
        find.answer("5");
        awaitIdle();
        server.none();

        // The end of the session ends it for those that wait.
        doubt(own, "d");
        find = server.next("lease", "d");
        asked = own.apply(session.lease("d")).waitForever().acquireAsync();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(session::close, task -> new Thread(task).start());
        fails(SessionClosed.class, asked);
        find.answer("NULL");
        closed.get();
    }

    /** A request is given up that may have been granted. */
    private void doubt(UnaryOperator<Request> set, String name) throws InterruptedException {
        CompletableFuture<Lease> asked = ask(set, name).get(0);
        FakeServer.Asked granting = server.next("acquire_each", name);
        asked.cancel(false);
        granting.fail("57P01");
    }

    /** What a last request with a place is granted, it may have been granted before: that is entered once. */
    void testReentryOnce() throws Exception {
        for (String reentry : new String[] {"return", "count"}) { // the latter if that is of another one of its leases
            CompletableFuture<Lease> asked = ask(request -> request.task("own").reenter().byHand().waitForever(), "a").get(0);
            FakeServer.Asked asking = server.next("acquire_each", "a");
            expect(asking.reentry().equals("count"), asking.reentry());
            asking.answer("NULL");
            server.take().answer("a," + asking.array(2)[0] + ",NULL");
            FakeServer.Asked last = server.next("acquire_each", "a");
            expect(last.reentry().equals(reentry), last.reentry());
            last.answer("7");
            expect(asked.get().token() == 7, asked);
        }
    }

    /** What one of two requests of a task was granted is not for the other. */
    void testTwoInDoubt() throws Exception {
        List<CompletableFuture<Lease>> asked = ask(request -> request.task("own"), "a");
        asked.addAll(ask(request -> request.task("own").ttl(HOUR), "a")); // of another kind, so they never go together
        fail("a", "57P01");
        expect(fail("a", "57P01").equals("deny"), "the other one");
        expect(fail("a", "XX000").equals("deny"), "the first one again");
        fail("a", "XX000"); // the first one has ended, perhaps before it was asked for
        server.next("lease", "a").answer("NULL");
        asked.forEach(result -> fails(SQLException.class, result));

        // Nor is a lease.
        CompletableFuture<Lease> outer = ask(request -> request.task("own").byHand(), "b").get(0);
        server.next("acquire_each", "b").answer("7");
        outer.get();
        CompletableFuture<Lease> inner = ask(request -> request.task("own").reenter(), "b").get(0);
        fail("b", "57P01");
        expect(fail("b", "XX000").equals("count"), "a lease");
        fails(SQLException.class, inner);
        server.none();
    }

    /** What the server may not have heard the release of is for the next request of the task, and outlives that release. */
    void testReleaseUnheard() throws Exception {
        UnaryOperator<Request> own = request -> request.task("own").byHand();
        CompletableFuture<Lease> asked = ask(own, "a").get(0);
        server.next("acquire_each", "a").answer("7");
        CompletableFuture<Throwable> released = close(asked.get());
        server.next("release_each", "a").fail("57P01");
        asked = released.thenCompose(end -> own.apply(session.lease("a")).acquireAsync());
        FakeServer.Asked next = server.any(false);
        for (; next.what.equals("release_each"); next = server.any(false)) { // for three seconds
            next.fail("57P01");
        }
        expect(released.get() == null && next.reentry().equals("count"), next.reentry());
        next.answer("7");
        released = close(asked.get());
        server.next("release_each", "a").answer("true");
        server.next("release_each", "a").answer("false"); // the first one has come by now, or never will
        expect(released.get() == null, released);
        asked = ask(own, "a").get(0);
        expect(fail("a", "XX000").equals("deny"), "after a release");
        fails(SQLException.class, asked);
    }

    /** What is refused to a request in doubt, perhaps as its task holds it by that, is for the next one. */
    void testRefusedByItself() throws Exception {
        CompletableFuture<Lease> first = ask(request -> request.task("own"), "a").get(0);
        CompletableFuture<Lease> other = ask(request -> request.task("own").byHand().waitForever(), "a").get(0);
        fail("a", "57P01");
        fail("a", "25006"); // the other one asks again
        FakeServer.Asked again = server.next("acquire_each", "a");
        expect(again.reentry().equals("deny"), "the first one again");
        again.answer("NULL");
        fails(LeaseRefused.class, first);
        again = server.next("acquire_each", "a");
        if (again.reentry().equals("deny")) { // asked before that
            again.fail("25006");
            again = server.next("acquire_each", "a");
        }
        expect(again.reentry().equals("count"), "the other one");
        again.answer("7");
        expect(other.get().token() == 7, other);
    }

    /** After an outage, requests ask for what they may have been granted; a turn that is told twice is not given back. */
    void testOutage() throws Exception {
        CompletableFuture<Lease> asked = ask(request -> request.waitForever().byHand(), "a").get(0);
        server.next("acquire_each", "a").answer("NULL");
        server.take().fail("57P01");
        FakeServer.Asked again = server.next("acquire_each", "a");
        expect(again.reentry().equals("return"), "after an outage");
        FakeServer.Asked take = server.take();
        CompletableFuture<Lease> other = ask(Request::waitForever, "b").get(0);
        again.answer("7");
        expect(asked.get().token() == 7, asked);
        server.next("acquire_each", "b").answer("NULL");
        awaitIdle();
        take.answer("a," + again.array(2)[0] + ",7");
        take = server.take();
        expect(session.lines.isIdle(), "a release");

        // A deadlock of a request that was under way may be one with its own lease.
        CompletableFuture<Lease> third = ask(Request::waitForever, "c").get(0);
        FakeServer.Asked asking = server.next("acquire_each", "c");
        take.fail("57P01");
        while (session.lines.queued() == 0) {
            LockSupport.parkNanos(100_000);
        }
        asking.fail("40P01");
        again = server.next("acquire_each", "b", "c");
        expect(again.reentry().equals("return"), "after a deadlock");
        again.answer("8,9");
        expect(other.get().token() == 8 && third.get().token() == 9, "both");

        // Without an outage, it is a deadlock.
        asked = ask(Request::waitForever, "d").get(0);
        fail("d", "40P01");
        fails(LeaseDeadlock.class, asked);
    }

    /** Places that may have run out, as this process did not get to run, are asked for again. */
    void testStopped() throws Exception {
        CompletableFuture<Lease> asked = ask(request -> request.waitForever().byHand(), "a").get(0);
        server.next("acquire_each", "a").answer("NULL");
        FakeServer.Asked take = server.take();
        synchronized (session.mutex) {
            session.waits.asked -= TimeUnit.NANOSECONDS.toMillis(Waits.KEEP) + 1;
        }
        take.answer("");
        awaitIdle();
        server.take().answer("");
        server.take();
        expect(!session.lines.isIdle(), "nothing is asked for");
        FakeServer.Asked again = server.next("acquire_each", "a");
        expect(again.reentry().equals("return"), "after a stop");
        again.answer("7");
        expect(asked.get().token() == 7, asked);
    }

    /** A turn that has come some time after it was asked for is a lease if it can be renewed. If not, the lock is asked for again. */
    void testLateTurns() throws Exception {
        for (boolean held : new boolean[] {true, false}) {
            CompletableFuture<Lease> asked = ask(request -> request.waitForever().byHand().ttl(Duration.ofNanos(1000)), "a").get(0);
            FakeServer.Asked asking = server.next("acquire_each", "a");
            asking.answer("NULL");
            server.take().answer("a," + asking.array(2)[0] + ",8");
            server.next("renew_each", "a").fail("57P01");
            server.next("renew_each", "a").answer(Boolean.toString(held));
            if (!held) {
                server.next("acquire_each", "a").answer("9");
            }
            expect(asked.get().token() == (held ? 8 : 9), asked);
        }
    }

    /** A turn that comes is a lease; one that nobody waits for any more is released; one that never comes is a deadlock. */
    void testTurns() throws Exception {
        CompletableFuture<Lease> asked = ask(Request::waitForever, "a").get(0);
        FakeServer.Asked asking = server.next("acquire_each", "a");
        String owner = asking.array(2)[0];
        asking.answer("NULL");
        server.take().answer("a," + owner + ",8");
        expect(asked.get().token() == 8, asked);
        asked = ask(Request::waitForever, "b").get(0);
        asking = server.next("acquire_each", "b");
        asking.answer("NULL");
        server.take().answer("b," + asking.array(2)[0] + ",NULL");
        server.next("acquire_each", "b").answer("NULL");
        fails(LeaseDeadlock.class, asked);

        asked = ask(Request::waitForever, "c").get(0);
        asking = server.next("acquire_each", "c");
        owner = asking.array(2)[0];
        asking.answer("NULL");
        FakeServer.Asked take = server.take();
        asked.cancel(false);
        server.next("acquire_each", "c").answer("NULL");
        take.answer("c," + owner + ",10");
        server.next("release_each", "c").answer("true");
    }

    /** Requests of one task for one lock share a place. Once one of them ends, or has its turn, the others ask again. */
    void testSharedPlace() throws Exception {
        UnaryOperator<Request> own = request -> request.task("own").byHand().waitForever();
        List<CompletableFuture<Lease>> asked = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            asked.addAll(ask(own, "a"));
            server.next("acquire_each", "a").answer("NULL");
            awaitIdle();
        }
        asked.get(0).cancel(false);
        server.next("acquire_each", "a").answer("NULL"); // gives the place up
        FakeServer.Asked again = server.next("acquire_each", "a", "a");
        again.answer("NULL,NULL");
        awaitIdle();
        server.take().answer("a," + again.array(2)[0] + ",7");
        server.next("renew_each", "a").answer("true"); // it might be the turn of the one that was given up
        Lease lease = asked.get(1).get();
        server.next("acquire_each", "a").fail("40P01");
        fails(LeaseDeadlock.class, asked.get(2));
        CompletableFuture<Throwable> released = close(lease);
        server.next("release_each", "a").answer("true");
        expect(released.get() == null, released);

        // The turn of one that was given up is that of another.
        FakeServer.Asked take = server.take();
        asked.clear();
        for (int i = 0; i < 2; i++) {
            asked.addAll(ask(request -> own.apply(request).ttl(Duration.ofNanos(1000)), "c"));
            server.next("acquire_each", "c").answer("NULL");
            awaitIdle();
        }
        asked.get(0).cancel(false);
        FakeServer.Asked last = server.next("acquire_each", "c");
        take.answer("c," + again.array(2)[0] + ",9");
        server.take();
        last.answer("NULL");
        server.next("renew_each", "c").answer("true"); // for it has come late
        expect(asked.get(1).get().token() == 9, asked);

        // One that does not wait gives the place up, too.
        asked = ask(own, "b");
        server.next("acquire_each", "b").answer("NULL");
        awaitIdle();
        CompletableFuture<Lease> refused = ask(request -> request.task("own"), "b").get(0);
        server.next("acquire_each", "b").answer("NULL");
        fails(LeaseRefused.class, refused);
        server.next("acquire_each", "b").answer("8");
        expect(asked.get(0).get().token() == 8, asked);
    }

    /** What is renewed by hand may have become shorter, though that was not heard; what is not is not ended by misuse. */
    void testRenewUnheard() throws Exception {
        CompletableFuture<Lease> asked = ask(Request::byHand, "a").get(0);
        server.next("acquire_each", "a").answer("7");
        Lease lease = asked.get();
        CompletableFuture<Boolean> renewed = CompletableFuture.supplyAsync(() -> {
            try {
                return lease.renew(Duration.ofMillis(1));
            } catch (SQLException | InterruptedException failed) {
                throw new AssertionError(failed);
            }
        }, task -> new Thread(task).start());
        server.next("renew_token", "a").fail("57P01");
        fails(ServerUnreachable.class, renewed);
        expect(lease.remaining().compareTo(Duration.ofMillis(1)) <= 0, lease.remaining());
        Lease other = held("b");
        try {
            other.leave(HOUR);
            throw new AssertionError("left");
        } catch (IllegalStateException asTold) {
            expect(!other.isLost(), "ended");
        }
    }

    /** A release that is asked for again tells a loss, unless the first one may have been done. */
    void testReleaseAgain() throws Exception {
        for (String[] answers : new String[][] {{"P0001", "lost"}, {"25006", "lost"}, {"57P01", "released"}}) {
            CompletableFuture<Throwable> released = close(held("job"));
            server.next("release_each", "job").fail(answers[0]);
            server.next("release_each", "job").answer("false");
            expect((released.get() instanceof LeaseLost) == answers[1].equals("lost"), answers[0] + ": " + released.get());
        }

        // If the owner has the lock twice, that one may have been done is enough.
        CompletableFuture<Lease> outer = ask(request -> request.task("own"), "job").get(0);
        server.next("acquire_each", "job").answer("7");
        CompletableFuture<Lease> inner = ask(request -> request.task("own").reenter(), "job").get(0);
        server.next("acquire_each", "job").answer("7");
        CompletableFuture<Throwable> released = close(inner.get());
        server.next("release_each", "job").fail("57P01");
        expect(released.get() == null, released);
        server.none();
        outer.get();
    }

    /** A task that has come after its end is not begun; what its handler throws is told as text that the server takes. */
    void testTaskAfterItsEnd() throws Exception {
        AtomicInteger begun = new AtomicInteger();
        session.worker("late", task -> begun.incrementAndGet(), 1).ttl(Duration.ofNanos(1000)).start();
        server.next("task_capture", "late").answer("key,7,NULL,0,1,ready");
        server.next("task_release", "late").answer("true");
        expect(begun.get() == 0, "a task after its end");
        session.worker("bad", task -> {
            throw new AssertionError("a\0b");
        }, 1).start();
        FakeServer.Asked next = server.any(false);
        while (!next.toString().equals("task_capture bad")) {
            next = server.any(false); // that of the other worker
        }
        next.answer("key,7,NULL,0,1,ready");
        FakeServer.Asked fail = server.any(false);
        while (!fail.what.equals("task_fail")) {
            fail = server.any(false);
        }
        expect(fail.array(4)[0].equals("a b"), fail.array(4)[0]);
        fail.answer("true");
    }

    /** A task that a transaction of its own finishes is not lost by that, nor renewed while that commits; how its handler fails is told. */
    void testFinishedTask() throws Exception {
        CompletableFuture<Task> begun = new CompletableFuture<>();
        CompletableFuture<Void> goOn = new CompletableFuture<>();
        CompletableFuture<Void> failed = new CompletableFuture<>();
        CompletableFuture<Void> again = new CompletableFuture<>();
        CompletableFuture<Void> finished = new CompletableFuture<>();
        CompletableFuture<Void> end = new CompletableFuture<>();
        CompletableFuture<Void> told = new CompletableFuture<>();
        Logger.getLogger("dlock").setFilter(entry -> {
            if (entry.getMessage().contains("of queue \"finished\" had ended")) {
                told.complete(null);
            }
            return true;
        });
        session.worker("finished", task -> {
            begun.complete(task);
            goOn.join();
            try {
                task.transaction(server.source(), connection -> 1);
            } catch (SQLException asTold) {
                failed.complete(null);
            }
            again.join();
            task.transaction(server.source(), connection -> 1);
            finished.complete(null);
            end.join();
            throw new IllegalStateException("after the end");
        }, 1).start();
        server.asksCommits = true;
        server.next("task_capture", "finished").answer("key,7,NULL,0,1,ready");
        Task task = begun.get();
        FakeServer.Asked renewal = renewal(task);
        goOn.complete(null);
        server.next("task_finish", "finished").answer("true");
        FakeServer.Asked commit = server.next("commit", "null");
        renewal.answer("false");
        awaitIdle();
        expect(!task.isLost(), "lost while it commits");
        synchronized (session.mutex) {
            task.renewBy(Background.FOREVER);
            expect(session.lines.isIdle(), "renewed while it commits");
        }
        commit.fail("40001");
        failed.get();
        renewal = renewal(task);
        again.complete(null);
        server.next("task_finish", "finished").answer("true");
        server.next("commit", "null").answer("");
        finished.get();
        renewal.answer("false");
        awaitIdle();
        expect(!task.isLost(), "lost");
        end.complete(null);
        told.get(1, TimeUnit.MINUTES);
    }

    private FakeServer.Asked renewal(Hold hold) throws InterruptedException {
        synchronized (session.mutex) {
            hold.renewBy(Background.FOREVER);
        }
        return server.any(true);
    }

    /** The end of a lease that was lost takes back the interrupt for that, and not that of the task around it. */
    void testLossInTask() throws Exception {
        CompletableFuture<Hold> outer = new CompletableFuture<>();
        CompletableFuture<Hold> inner = new CompletableFuture<>();
        CompletableFuture<Boolean> interrupted = new CompletableFuture<>();
        session.worker("mail", task -> {
            outer.complete(task);
            try {
                session.lease("a").run(lease -> {
                    inner.complete(lease);
                    while (!lease.isLost() || !task.isLost()) {
                        LockSupport.parkNanos(100_000);
                    }
                    return null;
                });
            } catch (LeaseLost lost) {
                interrupted.complete(Thread.interrupted());
            }
        }, 1).start();
        server.next("task_capture", "mail").answer("key,7,NULL,0,1,ready");
        server.next("acquire_each", "a").answer("8");
        Hold[] both = {inner.get(), outer.get()};
        synchronized (session.mutex) {
            for (Hold hold : both) {
                hold.renewBy(Background.FOREVER);
            }
        }
        server.any(true).answer("false");
        server.any(true).answer("false");
        server.next("release_each", "a").answer("false");
        expect(interrupted.get(), "the loss of the task is not told");
    }

    /** Whatever handlers of the log do, nothing waits for them, or ends. */
    void testLog() throws Exception {
        CompletableFuture<Void> told = new CompletableFuture<>();
        CompletableFuture<Void> end = new CompletableFuture<>();
        Logger logger = Logger.getLogger("dlock");
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord entry) {
                if (entry.getThrown() != null && "testLog".equals(entry.getThrown().getMessage())) {
                    told.complete(null);
                    end.join();
                    throw new IllegalStateException("the handler has failed");
                }
            }

            @Override
            public void flush() {
                // Nothing is kept back.
            }

            @Override
            public void close() {
                // Nor is there anything to be closed.
            }
        };
        logger.addHandler(handler);
        AtomicInteger terms = new AtomicInteger();
        Election election = session.elect(session.lease("boss"), lease -> {
            terms.incrementAndGet();
            throw new IllegalStateException("testLog");
        });
        for (int term = 1; term < 3; term++) {
            server.next("acquire_each", "boss").answer("7");
            server.next("release_each", "boss").answer("true");
            told.get();
        }
        expect(terms.get() == 2, terms);
        end.complete(null);
        server.next("acquire_each", "boss").answer("NULL");
        awaitIdle();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(election::close, task -> new Thread(task).start());
        server.next("acquire_each", "boss").answer("NULL");
        closed.get();
        logger.removeHandler(handler);
    }

    // ---- several servers ----

    /** What is asked of several servers is asked of the one that has the lock; they have one client. */
    void testShards() throws Exception {
        FakeServer other = new FakeServer();
        Shards shards = Dlock.openShards(List.of(server.source(), other.source()));
        expect(shards.of("123456789").client().equals(shards.of("a").client()), "two clients");
        for (Map.Entry<String, FakeServer> each : Map.of("123456789", server, "a", other, "b", other, "über", server).entrySet()) {
            String name = each.getKey();
            FakeServer having = each.getValue();
            for (Request request : List.of(shards.lease(name), shards.semaphore(name, 2))) {
                CompletableFuture<Lease> lease = request.acquireAsync();
                having.next("acquire_each", name).fail("42501");
                fails(SQLException.class, lease);
            }
            FutureTask<OptionalLong> once = new FutureTask<>(() -> shards.once(name, HOUR));
            new Thread(once).start();
            having.next("once", name).answer("7");
            expect(once.get().getAsLong() == 7, once.get());
            Watch watch = shards.watch(name, HOUR, holder -> { });
            having.next("watch", name).fail("42501");
            watch.close();
            Election election = shards.elect(shards.lease(name), lease -> { });
            having.next("acquire_each", name).fail("42501");
            election.close();
        }
        shards.close();
        expect(shards.of("123456789").closed && shards.of("a").closed, "not closed");
        other.end();
    }

    // ---- the end ----

    /** A session that is closed waits for releases under way. */
    void testClose() throws Exception {
        CompletableFuture<Throwable> released = close(held("job"));
        FakeServer.Asked release = server.next("release_each", "job");
        CompletableFuture<Void> closed = CompletableFuture.runAsync(session::close, task -> new Thread(task).start());
        release.fail("P0001");
        release = server.next("release_each", "job");
        expect(!closed.isDone(), "a release is under way");
        release.answer("true");
        closed.get();
        expect(released.get() == null, released);
    }

    /** What its workers wait for ends with it: it waits for them. */
    void testCloseWorker() throws Exception {
        session.worker("mail", task -> session.lease("a").waitForever().acquire(), 1).start();
        server.next("task_capture", "mail").answer("key,7,NULL,0,1,ready");
        server.next("acquire_each", "a").answer("NULL");
        server.take();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(session::close, task -> new Thread(task).start());
        List<String> asked = new ArrayList<>();
        while (asked.size() < 2) {
            FakeServer.Asked next = server.any(false);
            next.answer(next.what.equals("acquire_each") ? "NULL" : "true");
            asked.add(next.what);
        }
        expect(asked.contains("acquire_each") && asked.contains("task_fail"), asked);
        closed.get();
    }

    /** What is begun after its end ends. */
    void testStartTooLate() throws Exception {
        session.close();
        fails(SessionClosed.class, session.lease("a").acquireAsync());
        Worker worker = session.worker("mail", task -> { }, 1);
        try {
            worker.start();
            throw new AssertionError("started");
        } catch (SessionClosed asTold) {
            CompletableFuture.runAsync(worker::close, task -> new Thread(task).start()).get(1, TimeUnit.MINUTES);
        }
    }

    /** Its end is told to a thread that makes a statement itself, whatever the server does. */
    void testCloseOwnThread() throws Exception {
        held("a");
        awaitIdle();
        CompletableFuture<Void> asked = CompletableFuture.runAsync(() -> {
            try {
                session.lease("b").acquire();
            } catch (SQLException | InterruptedException failed) {
                throw new AssertionError(failed);
            }
        }, task -> new Thread(task).start());
        server.next("acquire_each", "b");
        CompletableFuture<Void> closed = CompletableFuture.runAsync(session::close, task -> new Thread(task).start());
        fails(SessionClosed.class, asked);
        server.next("lease", "b").answer("NULL");
        server.next("release_each", "a").answer("true");
        closed.get();
    }

    /** A lease that is lost is told to the work, and by onLost. */
    void testLoss() throws Exception {
        AtomicInteger told = new AtomicInteger();
        CompletableFuture<Lease> asked = ask(request -> request.onLost(lease -> told.incrementAndGet()), "job").get(0);
        server.next("acquire_each", "job").answer("7");
        server.next("renew_each", "job").answer("false");
        Lease lease = asked.get();
        while (!lease.isLost()) {
            LockSupport.parkNanos(100_000);
        }
        CompletableFuture<Throwable> released = close(lease);
        server.next("release_each", "job").answer("false");
        expect(released.get() instanceof LeaseLost, released.get());
        expect(told.get() == 1, told);
    }

    /** A server that is silent: the work ends, whatever the driver does. */
    void testSilence() throws Exception {
        CompletableFuture<Lease> held = new CompletableFuture<>();
        CompletableFuture<Void> work = CompletableFuture.runAsync(() -> {
            try {
                session.lease("job").ttl(HOUR).run(lease -> {
                    held.complete(lease);
                    Thread.sleep(600_000);
                    return null;
                });
            } catch (SQLException | InterruptedException failed) {
                throw new AssertionError(failed);
            }
        }, task -> new Thread(task).start());
        server.next("acquire_each", "job").answer("7");
        Lease lease = held.get();
        synchronized (session.mutex) {
            lease.renewBy(Background.FOREVER);
        }
        server.next("renew_each", "job");

        // The moment has come.
        synchronized (session.mutex) {
            lease.renewedByHand(Background.now() + lease.margin);
            session.keep(lease);
        }
        fails(ServerUnreachable.class, work);
    }

    private static void run(Method method) {
        SessionTest test = new SessionTest();
        try {
            method.invoke(test);
        } catch (ReflectiveOperationException failed) {
            throw new AssertionError(method.getName(), failed.getCause());
        } finally {
            test.server.end();
        }
    }

    public static void main(String[] args) {
        Logger.getLogger("dlock").setUseParentHandlers(false);
        Background.timers = new TestClock();
        try {
            Arrays.stream(SessionTest.class.getDeclaredMethods()).filter(method -> method.getName().startsWith("test"))
                .map(method -> CompletableFuture.runAsync(() -> run(method), task -> new Thread(task).start())).toList()
                .forEach(CompletableFuture::join);
        } catch (CompletionException failed) {
            failed.printStackTrace();
            System.exit(1); // though others wait
        }
        System.exit(0);
    }
}
