/*
 * dlock.pml
 *	  Grant, hand-off, cancel, expiry, requests for several locks, flush and crash,
 *	  as a model that spin checks exhaustively.
 *
 * A step (d_step) is what the code does under partition locks; the function that
 * does it stands in front of it.  Between two steps any other process may do
 * anything, so a process that is slow, or stopped for a while, needs nothing special.
 *
 * Left out: modes (any two leases conflict), renewals, conversions, paths.  Time is
 * one bit of a lease: its deadline has passed, which can happen at any moment, and
 * is true for the server and the client at once.  So it is with a call.
 *
 * Compile with
 *	  CALLS=n	calls of dlock_acquire by all clients together; and no more than
 *				CANCELS of them are cancelled, and LATE of the waiting ones are
 *				called and look too late
 *	  CRASH		the server may crash once; what it finds afterwards is any part of
 *				the WAL that has all that was flushed
 *	  STOP		a client may be stopped for ever; then, and only then, the looks
 *				after deadlock_timeout are part of the model
 *	  MUTANT=n	with a mistake, see the file "mutants"
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef LATE
#define LATE 1
#endif

#define N 3						/* clients */
#define NOBODY N
#define ROOM 12					/* for records that are not flushed */
#define BLOCK 3					/* tokens that are reserved at a time */
#ifdef CRASH
#define AT_FIRST 1
#else
#define AT_FIRST 100			/* what is reserved matters after a crash only */
#endif

#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

/* ---- shared memory; the first index is the lock ---- */

byte holder[2] = NOBODY;
byte token[2];
bool dead[2];					/* the deadline of the lease has passed */
byte unerased[2];				/* whose dead leases are still on disk */
byte queue[2];					/* clients, plus one; two bits each, the first lowest */
byte called[2];					/* those in the queue that have been called ... */
byte passed[2];					/* ... so long ago that they keep nobody out */

/* The index is the client. */
bool waiting[N];
byte asked[N];					/* for which locks */
byte armed[N];					/* will wake when a lease or a call ends on these */
bool latch[N];

byte next = 1;					/* token */
#if MUTANT == 7
byte early[N];
#endif
byte limit = AT_FIRST;			/* those below are reserved */

/* ---- disk ---- */

#define SLOT(l, c) ((l) * N + (c))
byte reserved = AT_FIRST;		/* tokens, as the sequence has it */
byte disk[6];					/* the token in a slot; zero: free */
byte wal_slot[ROOM];			/* records that are inserted, and not flushed */
byte wal_token[ROOM];
byte inserted;
byte lsn[N + 1];				/* so many of them a client has to flush, or a crash keeps */

/* ---- clients ---- */

byte believed[N];				/* locks that a client was told that it has */
byte told[6];					/* with which token; by slot */
byte newest[2];					/* token that a client was told */
bool lost[N];					/* the connection */
byte begun;						/* who has called */
byte stopped = NOBODY;
byte looked;					/* who has looked since the last change */

/* What happens no more often than this */
byte calls = CALLS;
byte cancels = CANCELS;
byte late = LATE;				/* calls that end before their process looks */

hidden byte x, y, crowd, is_first;	/* within a step */

/* ---- the queue ---- */

#define FIRST(l) (queue[l] & 3)
#define SECOND(l) ((queue[l] >> 2) & 3)
#define THIRD(l) (queue[l] >> 4)

/* dlock_holder_is_waiting */
#define KEEPS(l, place) (place != 0 && !HAS(passed[l], place - 1))

/* dlock_holder_is_blocked: by the lease, or by a request in front */
#define LIVE(l) (holder[l] != NOBODY && !dead[l])
#define IS_BEHIND(l, c) \
	(FIRST(l) != c + 1 && (KEEPS(l, FIRST(l)) || \
	 (SECOND(l) != c + 1 && (KEEPS(l, SECOND(l)) || \
	  (THIRD(l) != c + 1 && KEEPS(l, THIRD(l)))))))
#define IS_BLOCKED(l, c) (HAS(asked[c], l) && (LIVE(l) || IS_BEHIND(l, c)))
#define ANY_BLOCKED(c) (IS_BLOCKED(0, c) || IS_BLOCKED(1, c))

/* dlock_space_is_first: of those that have not been called */
#define IS_CALLED(l, place) HAS(called[l], place - 1)
#define IS_FIRST(l, c) \
	(FIRST(l) == c + 1 || \
	 (SECOND(l) == c + 1 && IS_CALLED(l, FIRST(l))) || \
	 (THIRD(l) == c + 1 && IS_CALLED(l, SECOND(l))))

/* ---- what is to be true ---- */

/* Nobody else believes to have the lock. */
#define EXCLUSION(l) (!HAS(believed[0], l) && !HAS(believed[1], l) && !HAS(believed[2], l))
/* Each token is larger than those before it. */
#define ASCENDING(l) (token[l] > newest[l])
/* Requests in front come first. */
#define IN_TURN(l, c) (!HAS(asked[c], l) || !IS_BEHIND(l, c))
/* A call that is not answered leaves no lease. */
#define UNDONE(l, c) !(HAS(asked[c], l) && LIVE(l) && holder[l] == c)
/* After a crash: no two leases on a lock, and all that a client believes to have. */
#define ALONE(l) (holder[l] == NOBODY)
#define SURVIVED(l, c) (holder[l] == c && token[l] == told[SLOT(l, c)])
/* A stopped process keeps nobody out for ever. */
#define OPEN(l) \
	(LIVE(l) || !waiting[stopped] || !HAS(asked[stopped], l) || HAS(passed[l], stopped))

/* ---- parts of steps ---- */

/* dlock_store_write, dlock_store_erase */
inline log(slot, value)
{
#ifdef CRASH
	assert(inserted < ROOM);
	wal_slot[inserted] = slot;
	wal_token[inserted] = value;
	inserted++
#else
	skip
#endif
}

/* XLogFlush */
inline flush(c)
{
	do
	:: lsn[c] > 0 ->
		disk[wal_slot[0]] = wal_token[0];
		inserted--;
		x = 0;
		do
		:: x < inserted -> wal_slot[x] = wal_slot[x + 1]; wal_token[x] = wal_token[x + 1]; x++
		:: else -> break
		od;
		wal_slot[inserted] = 0;
		wal_token[inserted] = 0;
		x = 0;
		do
		:: x <= N -> if :: lsn[x] > 0 -> lsn[x]-- :: else fi; x++
		:: else -> break
		od
	:: else -> break
	od
}

/* dlock_queue_give_turns, for one place in the queue */
inline call_place(l, place)
{
	if
	:: place == 0
	:: place != 0 ->
		if
		:: !IS_CALLED(l, place) && !crowd ->
			called[l] = called[l] | BIT(place - 1);
			looked = 0;
			latch[place - 1] = (MUTANT != 1)
		:: else
		fi;
		if
		:: IS_CALLED(l, place) -> crowd = crowd || !HAS(passed[l], place - 1)
		:: else ->
			/* wake_if_late */
			if
			:: is_first && !HAS(armed[place - 1], l) && MUTANT != 8 ->
				armed[place - 1] = armed[place - 1] | BIT(l);
				latch[place - 1] = true
			:: else
			fi;
			is_first = false;
			crowd = true
		fi
	fi
}

inline call(l)
{
	crowd = LIVE(l);
	is_first = true;
	call_place(l, FIRST(l));
	call_place(l, SECOND(l));
	call_place(l, THIRD(l))
}

inline enqueue(l, c)
{
	if
	:: HAS(asked[c], l) ->
		queue[l] = queue[l] |
			(queue[l] == 0 -> c + 1 : (queue[l] < 4 -> (c + 1) << 2 : (c + 1) << 4))
	:: else
	fi
}

/* dlock_queue_remove_mine, or a request becomes a lease */
inline dequeue(l, c)
{
	queue[l] = (FIRST(l) == c + 1 -> queue[l] >> 2 :
		(SECOND(l) == c + 1 -> FIRST(l) | (THIRD(l) << 2) :
		(THIRD(l) == c + 1 -> queue[l] & 15 : queue[l])));
	called[l] = called[l] & ~BIT(c);
	passed[l] = passed[l] & ~BIT(c)
}

/* What was called in vain is to be called again; and until when to sleep. */
inline wait_longer(l, c)
{
	if
	:: IS_BLOCKED(l, c) && IS_FIRST(l, c) -> armed[c] = armed[c] | BIT(l)
	:: else -> armed[c] = armed[c] & ~BIT(l)
	fi;
	if
	:: MUTANT != 6 -> called[l] = called[l] & ~BIT(c); passed[l] = passed[l] & ~BIT(c)
	:: else
	fi
}

/* dlock_step_tidy: erase the dead leases first */
inline tidy(l)
{
#ifdef CRASH
	y = 0;
	do
	:: y < N ->
		if
		:: (HAS(unerased[l], y) || holder[l] == y) && MUTANT != 5 -> log(SLOT(l, y), 0)
		:: else
		fi;
		y++
	:: else -> break
	od;
	unerased[l] = 0
#else
	skip
#endif
}

/* grant, promote */
inline grant(l, c)
{
	if
	:: HAS(asked[c], l) ->
		assert(IN_TURN(l, c));
		tidy(l);
		dequeue(l, c);
		holder[l] = c;
		dead[l] = false;
#if MUTANT == 7
		token[l] = (early[c] != 0 -> early[c] + l : next);
#else
		token[l] = next;
#endif
		next++;
		log(SLOT(l, c), token[l]);
		call(l)
	:: else
	fi
}

/* dlock_held_stop: the lease ends in memory, its page is left to the next grant */
inline stop(l, c)
{
	if
	:: HAS(asked[c], l) && LIVE(l) && holder[l] == c ->
#ifdef CRASH
		unerased[l] = unerased[l] | BIT(c);
#endif
		holder[l] = NOBODY;
		token[l] = 0;
		call(l)
	:: else
	fi
}

inline leave(l, c)
{
	if
	:: HAS(asked[c], l) ->
		dequeue(l, c);
		if
		:: MUTANT != 3 -> call(l)
		:: else
		fi
	:: else
	fi
}

/* The call ends in an error: abandon, dlock_queue_leave, undo. */
inline give_up(c)
{
	if
	:: waiting[c] -> leave(0, c); leave(1, c)
	:: !waiting[c] && MUTANT != 9 -> stop(0, c); stop(1, c)
	:: else
	fi;
	assert(UNDONE(0, c));
	assert(UNDONE(1, c));
	waiting[c] = false;
	asked[c] = 0;
	armed[c] = 0;
	latch[c] = false;
	lsn[c] = 0
}

/* The client is told that it has the lock; unless the deadline has passed. */
inline tell(l, c)
{
	if
	:: HAS(asked[c], l) && LIVE(l) && holder[l] == c ->
		assert(EXCLUSION(l));
		assert(ASCENDING(l));
		newest[l] = token[l];
		told[SLOT(l, c)] = token[l];
		believed[c] = believed[c] | BIT(l)
	:: else
	fi
}

/* dlock_held_release; from then on the client does not believe to have it */
inline release(l, c)
{
	believed[c] = believed[c] & ~BIT(l);
	if
	:: LIVE(l) && holder[l] == c && token[l] == told[SLOT(l, c)] ->
		log(SLOT(l, c), 0);
		holder[l] = NOBODY;
		token[l] = 0;
		call(l)
	:: else
	fi;
	told[SLOT(l, c)] = 0
}

/* ---- clients, each with the process that serves it ---- */

#define COUNT(set) (HAS(set, 0) + HAS(set, 1))
#define TOKENS_LEFT (next + COUNT(asked[_pid]) <= limit)
#define FITS (!ANY_BLOCKED(_pid) || (MUTANT == 2 && waiting[_pid]) || \
	(MUTANT == 11 && !(IS_LIVE(0) || IS_LIVE(1))))
#define IS_LIVE(l) (HAS(asked[_pid], l) && LIVE(l))

#define RELEASE(l) d_step { HAS(believed[_pid], l) -> release(l, _pid) }
#define CANCEL d_step { cancels > 0 -> cancels--; give_up(_pid) }

/* Clients differ in nothing but their number, and so do locks: one order is enough. */
#define MAY_BEGIN(set) ((_pid == 0 || HAS(begun, _pid - 1)) && (begun != 0 || set != 2))
/* With a lease of its own in the way the call would be refused. */
#define IS_OWN(l, set) (HAS(set, l) && LIVE(l) && holder[l] == _pid)
#define ASK(set) \
	d_step { \
		calls > 0 && MAY_BEGIN(set) && !IS_OWN(0, set) && !IS_OWN(1, set) -> \
		calls--; \
		begun = begun | BIT(_pid); \
		asked[_pid] = set \
	}

active [N] proctype Client()
{
begin:
	{
		do
		:: RELEASE(0)
		:: RELEASE(1)
		:: calls == 0 && believed[_pid] == 0 -> goto over
		:: ASK(1); break
		:: ASK(2); break
		:: ASK(3); break
		od;

attempt:	/* dlock_acquire_locks: by a newcomer, or from the place in the queue */
		if
		:: d_step {
				FITS && TOKENS_LEFT ->
				grant(0, _pid);
				grant(1, _pid);
				waiting[_pid] = false;
				armed[_pid] = 0;
				lsn[_pid] = inserted
			};
			goto answer
		:: d_step {
				/* dlock_token_reserve: reserve, and flush that */
				FITS && !TOKENS_LEFT ->
				lsn[_pid] = inserted;
				flush(_pid);
				limit = limit + BLOCK;
				if
				:: MUTANT != 10 -> reserved = limit
				:: else
				fi
			};
			goto attempt
		:: d_step {
				/* dlock_process_begin, dlock_queue_stay */
				!FITS && !waiting[_pid] ->
				enqueue(0, _pid);
				enqueue(1, _pid);
#if MUTANT == 7
				early[_pid] = next;
				next = next + 2;
#endif
				waiting[_pid] = true;
				wait_longer(0, _pid);
				wait_longer(1, _pid)
			};
			if
			:: goto rest
			/* to process an interrupt resets the latch */
			:: d_step { true -> latch[_pid] = false };
				goto attempt
			fi
		:: d_step {
				/* dlock_queue_stay */
				!FITS && waiting[_pid] ->
				wait_longer(0, _pid);
				wait_longer(1, _pid)
			}
		:: CANCEL;
			goto begin
		fi;

rest:
#if MUTANT == 12
		latch[_pid] = false;
#endif

sleep:	/* nap, ResetLatch */
		if
		:: d_step { latch[_pid] -> latch[_pid] = false };
			goto attempt
		:: CANCEL;
			goto begin
#ifdef STOP
		/* check_progress, dlock_queue_give_turns_ahead */
		:: atomic {
				timeout && stopped != NOBODY && !HAS(looked, _pid) ->
				looked = looked | BIT(_pid);
				if
				:: HAS(asked[_pid], 0) -> d_step { call(0) }
				:: else
				fi;
				if
				:: HAS(asked[_pid], 1) -> d_step { call(1) }
				:: else
				fi
			};
			goto attempt
#endif
		fi;

answer:	/* dlock_flush_commit */
		if
		:: d_step {
				true ->
				if
				:: MUTANT != 4 -> flush(_pid)
				:: else -> lsn[_pid] = 0
				fi;
				tell(0, _pid);
				tell(1, _pid);
				asked[_pid] = 0;
				latch[_pid] = false
			}
		:: CANCEL
		fi;
		goto begin;

over:	skip
	} unless {
		if
		:: d_step { lost[_pid] -> lost[_pid] = false };
			goto begin
		:: stopped == _pid ->
end_stopped:
			false
		fi
	}
}

/* ---- the rest of the world ---- */

/* Those whose timer is for the end of something on this lock */
inline wake_armed(l)
{
	x = 0;
	do
	:: x < N ->
		if
		:: HAS(armed[x], l) -> armed[x] = armed[x] & ~BIT(l); latch[x] = true
		:: else
		fi;
		x++
	:: else -> break
	od;
	looked = 0
}

inline expire(l)
{
	dead[l] = true;
	believed[holder[l]] = believed[holder[l]] & ~BIT(l);
	told[SLOT(l, holder[l])] = 0;
	wake_armed(l)
}

/* A call ends that its process has not followed. */
#define MAY_PASS(l, c) \
	(HAS(called[l], c) && !HAS(passed[l], c) && (late > 0 || stopped == c))

inline pass(l, c)
{
	if
	:: stopped != c -> late--
	:: else
	fi;
	passed[l] = passed[l] | BIT(c);
	wake_armed(l)
}

active proctype Clock()
{
end:
	do
	:: d_step { LIVE(0) -> expire(0) }
	:: d_step { LIVE(1) -> expire(1) }
	:: d_step { MAY_PASS(0, 0) -> pass(0, 0) }
	:: d_step { MAY_PASS(0, 1) -> pass(0, 1) }
	:: d_step { MAY_PASS(0, 2) -> pass(0, 2) }
	:: d_step { MAY_PASS(1, 0) -> pass(1, 0) }
	:: d_step { MAY_PASS(1, 1) -> pass(1, 1) }
	:: d_step { MAY_PASS(1, 2) -> pass(1, 2) }
	/* It need not happen, and what does not happen wakes nobody. */
	:: d_step { late > 0 -> late = 0 }
	:: d_step { cancels > 0 -> cancels = 0 }
	od
}

#ifdef STOP
#define CAN_STOP(c) (asked[c] != 0 || believed[c] != 0)
#define QUIET(l) (OPEN(l) || HAS(called[l], stopped))
#define HAS_LOOKED(c) (!waiting[c] || c == stopped || HAS(looked, c))

/* try_expire */
#define UNREAPED(l) (holder[l] != NOBODY && dead[l])

inline reap(l)
{
	log(SLOT(l, holder[l]), 0);
	holder[l] = NOBODY;
	token[l] = 0;
	dead[l] = false;
	call(l)
}

active proctype Stop()
{
end:
	if
	:: d_step { CAN_STOP(0) -> stopped = 0 }
	:: d_step { CAN_STOP(1) -> stopped = 1 }
	:: d_step { CAN_STOP(2) -> stopped = 2 }
	fi;
quiet:
	/* The worker comes once; what it does the others would do, too. */
	do
	:: atomic { timeout && UNREAPED(0) -> d_step { reap(0) } }
	:: atomic { timeout && UNREAPED(1) -> d_step { reap(1) } }
	/* A caller that does not wait is refused, and calls the queue (give_turns). */
	:: atomic { timeout && !OPEN(0) && !HAS(called[0], stopped) -> d_step { call(0) } }
	:: atomic { timeout && !OPEN(1) && !HAS(called[1], stopped) -> d_step { call(1) } }
	:: timeout && !UNREAPED(0) && !UNREAPED(1) && QUIET(0) && QUIET(1) &&
		HAS_LOOKED(0) && HAS_LOOKED(1) && HAS_LOOKED(2) -> break
	od;
	assert(OPEN(0));
	assert(OPEN(1))
}
#endif

#ifdef CRASH
/* What is on disk is held. */
inline load(l, c)
{
	if
	:: disk[SLOT(l, c)] != 0 ->
		assert(ALONE(l));
		holder[l] = c;
		token[l] = disk[SLOT(l, c)]
	:: else
	fi;
	if
	:: HAS(believed[c], l) -> assert(SURVIVED(l, c))
	:: else
	fi
}

active proctype Crash()
{
	atomic {
		/* A part of the WAL was not flushed, and yet is there. */
		do
		:: lsn[N] < inserted -> lsn[N]++
		:: break
		od;
		d_step {
			flush(N);
			x = 0;
			do
			:: x < ROOM -> wal_slot[x] = 0; wal_token[x] = 0; x++
			:: else -> break
			od;
			inserted = 0;
			next = reserved;
			limit = reserved;
			x = 0;
			do
			:: x < 2 ->
				holder[x] = NOBODY;
				token[x] = 0;
				dead[x] = false;
				unerased[x] = 0;
				queue[x] = 0;
				called[x] = 0;
				passed[x] = 0;
				x++
			:: else -> break
			od;
			x = 0;
			do
			:: x < N ->
				waiting[x] = false;
				asked[x] = 0;
				armed[x] = 0;
				latch[x] = false;
				lsn[x] = 0;
				load(0, x);
				load(1, x);
				lost[x] = true;
				x++
			:: else -> break
			od;
			x = 0
		}
	}
}
#endif
