package dlock;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Waiting for locks, whatever the number of those who wait.
 *
 * <p>A request keeps its place in the queue of the lock, and one connection, there only while something
 * waits, takes the turns of all. A place is kept for KEEP after a call. If that is less than the time from one call to
 * the answer of the next, as this process or its machine was stopped, places may have run out. Then all ask again, as after
 * an outage.
 *
 * <p>Paths and several locks at once have no place, and ask again in intervals that grow.
 *
 * <p>All is protected by the session's mutex, which is held by who calls.
 */
final class Waits {
    /**
     * How long a place is kept between calls, which is how long a program that dies holds others up; and how long a
     * call waits, for it keeps a snapshot, and two of them have to be answered meanwhile.
     */
    static final long KEEP = TimeUnit.SECONDS.toNanos(10);
    private static final long TAKE = TimeUnit.SECONDS.toNanos(4);
    private static final long RETRY_AFTER = TimeUnit.MILLISECONDS.toNanos(500);
    private static final Lines.Kind TURNS = Lines.Kind.alone(
        "SELECT name, owner, token::text FROM %1$sdlock_take(?, ?::interval, ?::interval)", TAKE + Lines.ANSWER_WITHIN);

    private final Session session;
    private final Map<String, List<Want>> places = new HashMap<>(); // who waits: by owner and name
    private final Map<String, Long> left = new HashMap<>(); // when a request for a place ended, for turns asked for before
    private Lines taker;
    long asked; // when turns, or the first place, were asked for: in milliseconds of the wall clock, which no suspension stops

    Waits(Session session) {
        this.session = session;
    }

    /** A place is about to be asked for: a turn may come before the answer. */
    void expect(Want want) {
        List<Want> list = places.computeIfAbsent(want.place, none -> new ArrayList<>());
        if (!list.contains(want)) {
            list.add(want);
        }
    }

    /** It has no place any more. */
    void forget(Want want) {
        places.computeIfPresent(want.place == null ? "" : want.place, (key, list) -> {
            if (list.remove(want) && taker != null) {
                left.put(key, Background.now());
            }
            return list.isEmpty() ? null : list;
        });
    }

    /** Take turns, as long as there are places; one was asked for at that moment. */
    void take(long sent) {
        if (taker == null) {
            taker = new Lines(session.source, session.mutex, 1, () -> Background.FOREVER);
            asked = System.currentTimeMillis() - TimeUnit.NANOSECONDS.toMillis(Background.now() - sent);
            take();
        }
    }

    private void take() {
        if (places.isEmpty()) {
            close();
            return;
        }
        long before = asked;
        asked = System.currentTimeMillis();
        taker.submit(TURNS, TAKE + Lines.ANSWER_WITHIN, answer -> {
            synchronized (session.mutex) {
                taken(answer, before);
            }
        }, session.client(), Background.interval(TAKE), Background.interval(KEEP));
    }

    private void taken(Lines.Answer answer, long before) {
        boolean failed = answer.error() != null;
        if (!failed) {
            answer.rows().forEach(row -> turn(row[0], row[1], row[2] == null ? Want.NEVER : row[2], answer.sent()));
            left.values().removeIf(moment -> moment - answer.sent() <= 0);
        }
        if (failed || System.currentTimeMillis() - before > TimeUnit.NANOSECONDS.toMillis(KEEP)) {
            List.copyOf(places.values()).forEach(list -> wake(list, true));
        }
        if (failed) {
            Background.at(Background.after(RETRY_AFTER), () -> {
                synchronized (session.mutex) {
                    take();
                }
            });
        } else {
            take();
        }
    }

    /** A request has ended, and perhaps this place of its owner with it. Others that wait there ask again. */
    void ended(String place) {
        wake(places.getOrDefault(place, List.of()), false);
    }

    /** Nobody takes one that was told twice, and is a lease; one that nobody takes is released. */
    void turn(String name, String owner, String token, long sent) {
        String place = Session.placeOf(owner, name);
        List<Want> list = session.holds(owner, name, token) ? null : places.get(place);
        boolean doubtful = left.getOrDefault(place, sent) - sent > 0; // perhaps of one that has ended, and has been undone
        if (list != null && list.get(0).offer(token, doubtful ? sent - KEEP : sent)) {
            list.get(0).wake(false);
        } else if (!token.equals(Want.NEVER) && !session.holds(owner, name, token)) {
            session.lines.submit(Lease.RELEASE, Lines.ANSWER_WITHIN, answer -> { }, name, token);
        }
    }

    private static void wake(List<Want> list, boolean afterOutage) {
        List.copyOf(list).forEach(want -> want.wake(afterOutage));
    }

    void close() {
        if (taker != null) {
            taker.close();
            taker = null;
        }
    }
}
