/*
 * place.pml
 *	  Places in a queue: clients that stay away or come back, and processes that listen,
 *	  or die, as a model that spin checks exhaustively.
 *
 * One lock, which somebody else holds at first.  Client A keeps a place, and up to two
 * processes listen for it; client B keeps one, too, and nobody listens; W is a blocked call.
 * All else is as in dlock.pml: a step is what the code does under the partition lock, with
 * the bucket's inside it, or under the bucket's alone; time is what may happen at any moment.
 *
 * Compile with
 *	  ASKS=n	calls of both clients together for their places; whoever makes none of
 *				those that are left stays away
 *	  DEATHS=n	processes that listen and are cancelled or terminated, at any moment
 *	  MUTANT=n	with a mistake, see the file "mutants"
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef ASKS
#define ASKS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define A 0
#define B 1
#define W 2
#define NOBODY 3				/* in "process" and "newest", too */
#define OTHER 4					/* holds the lock at first */

#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)

/* ---- shared memory ---- */

byte holder = OTHER;
byte queue;						/* requests, plus one; two bits each, the first lowest */
byte called;					/* requests that have the turn ... */
byte passed;					/* ... and missed it */
byte over;						/* places whose time is over, if they have no process */
byte armed;						/* requests whose process has a timer for what is in their way */
byte due;						/* ... and that has run out */
byte process[3] = NOBODY;		/* of places: 0 or 1, which listen; that of W is not asked for */
bool wanted[3];					/* the place is to be asked for ("called" in the code) */
bool latch[3];					/* of the processes that listen, and of W */

byte newest = NOBODY;			/* process that listens ... */
byte before[2] = NOBODY;		/* ... and the one that began before it */

byte asks = ASKS;
byte deaths = DEATHS;
byte coming = 2;				/* clients that may ask still */

hidden byte x;
hidden byte crowd, relied;

/* ---- the queue ---- */

#define FIRST (queue & 3)
#define SECOND ((queue >> 2) & 3)
#define THIRD (queue >> 4)
#define IS_IN(r) (FIRST == r + 1 || SECOND == r + 1 || THIRD == r + 1)

/* dlock_space_is_over */
#define IS_OVER(r) (r != W && HAS(over, r) && process[r] == NOBODY)
#define HAS_PROCESS(r) (r == W || process[r] != NOBODY)

/* dlock_holder_is_waiting, dlock_holder_is_blocked */
#define KEEPS(place) (place != 0 && !HAS(passed, place - 1) && !IS_OVER((place - 1)))
#define LIVE (holder != NOBODY)
#define IS_BEHIND(r) \
	(FIRST != r + 1 && (KEEPS(FIRST) || \
	 (SECOND != r + 1 && (KEEPS(SECOND) || (THIRD != r + 1 && KEEPS(THIRD))))))
#define IS_BLOCKED(r) (LIVE || (IS_BEHIND(r) && MUTANT != 16))

/* Does the request right in front have a timer that this one relies on?  (relies_in_front) */
#define RELIED_UPON(place) (place != 0 && !HAS(called, place - 1) && (HAS_PROCESS((place - 1)) || MUTANT == 14))
#define RELIES(r) \
	((SECOND == r + 1 && RELIED_UPON(FIRST)) || (THIRD == r + 1 && RELIED_UPON(SECOND)))

/* ---- parts of steps ---- */

inline wake(r)
{
	if
	:: r == W -> latch[W] = true
	:: r != W && process[r] != NOBODY -> wanted[r] = true; latch[process[r]] = true
	:: else
	fi
}

/* dlock_queue_give_turns, for one request of the queue */
inline call_request(place)
{
	if
	:: place == 0 || IS_OVER((place - 1))
	:: else ->
		if
		:: !HAS(called, place - 1) && !crowd ->
			called = called | BIT(place - 1);
			wake((place - 1))
		:: else
		fi;
		if
		:: HAS(called, place - 1) -> crowd = crowd || !HAS(passed, place - 1)
		:: else ->
			crowd = true;
			if
			:: HAS_PROCESS((place - 1)) && !relied && !HAS(armed, place - 1) ->
				armed = armed | BIT(place - 1);
				wake((place - 1))
			:: else
			fi;
			relied = relied || HAS_PROCESS((place - 1)) || MUTANT == 14
		fi
	fi
}

inline call()
{
	crowd = LIVE;
	relied = false;
	call_request(FIRST);
	call_request(SECOND);
	call_request(THIRD)
}

inline enqueue(r)
{
	queue = queue | (queue == 0 -> r + 1 : (queue < 4 -> (r + 1) << 2 : (r + 1) << 4))
}

inline dequeue(r)
{
	queue = (FIRST == r + 1 -> queue >> 2 :
		(SECOND == r + 1 -> FIRST | (THIRD << 2) : (THIRD == r + 1 -> queue & 15 : queue)));
	called = called & ~BIT(r);
	passed = passed & ~BIT(r);
	over = over & ~BIT(r);
	armed = armed & ~BIT(r);
	due = due & ~BIT(r);
	process[r] = NOBODY;
	wanted[r] = false
}

/* promote, grant */
inline grant(r)
{
	assert(!IS_BEHIND(r) && !LIVE);
	dequeue(r);
	holder = r;
	call()
}

/* dlock_held_release */
inline release(r)
{
	if
	:: holder == r -> holder = NOBODY; call()
	:: else
	fi
}

/* dlock_queue_stay, dlock_queue_attend: the turn was in vain; when to look again */
inline wait_longer(r)
{
	called = called & ~BIT(r);
	passed = passed & ~BIT(r);
	due = due & ~BIT(r);
	armed = (RELIES(r) -> armed & ~BIT(r) : armed | BIT(r));
	wanted[r] = false
}

/* attend: who listens gets the place */
inline attend(r)
{
	process[r] = (r == A -> newest : NOBODY);
	if
	:: process[r] != NOBODY && MUTANT != 15 -> wake(r)
	:: else
	fi
}

/* ---- clients ---- */

/* A call that does not wait: takes the lock, makes a place, or keeps it. */
inline ask(r)
{
	asks--;
	if
	:: !IS_BLOCKED(r) -> grant(r)
	:: IS_BLOCKED(r) && holder != r ->
		if
		:: IS_IN(r) && !IS_OVER(r) ->
			/* dlock_queue_keep_on */
			called = called & ~BIT(r);
			passed = passed & ~BIT(r)
		:: else ->
			dequeue(r);
			enqueue(r);
			attend(r);
			call()
		fi
	:: else
	fi
}

proctype Client(byte r)
{
	do
	:: d_step { asks > 0 -> ask(r) }
	/* keep => '0' */
	:: d_step { asks > 0 && IS_IN(r) && IS_BLOCKED(r) -> asks--; dequeue(r); call() }
	:: d_step { holder == r -> release(r) }
	/* It stays away. */
	:: d_step { true -> coming--; x = 0 }; break
	od;
end:
	/* What it has been granted all the same it releases, or not. */
	do
	:: d_step { holder == r -> release(r) }
	od
}

/* ---- processes that listen ---- */

#define DIE(me) deaths > 0 && !DONE(me)
#define MINE(me) (IS_IN(A) && newest == me && !IS_OVER(A))
#define IS_DUE(me) (MINE(me) && (process[A] != me || wanted[A] || HAS(due, A)))
/* Nothing is to come for it: its time is up. */
#define DONE(me) (coming == 0 && (!IS_IN(A) || IS_OVER(A)))

proctype Listener(byte me)
{
	/* dlock_place_listen */
	d_step { before[me] = newest; newest = me };

pass:	/* ResetLatch, dlock_place_due */
	if
	:: d_step { true -> latch[me] = false }
	fi;
	if
	:: !IS_DUE(me) -> goto sleep
	:: IS_DUE(me) -> skip
	:: d_step { DIE(me) -> deaths-- }; goto leave
	fi;

	/* dlock_acquire_locks: whatever has come between */
	if
	:: d_step { !MINE(me) -> x = 0 }; goto pass
	:: d_step { MINE(me) && !IS_BLOCKED(A) -> grant(A) }; goto leave
	:: d_step { MINE(me) && IS_BLOCKED(A) ->
			process[A] = me;
			if
			:: HAS(due, A) -> call()
			:: else
			fi;
			wait_longer(A)
		};
		goto pass
	:: d_step { DIE(me) -> deaths-- }; goto leave
	fi;

sleep:
	if
	:: latch[me] -> goto pass
	/* Its timer, which the latch stands for */
	:: DONE(me)
	:: d_step { DIE(me) -> deaths-- }
	fi;

leave:	/* dlock_queue_end_listening */
	if
	:: d_step {
			MUTANT != 17 ->
			if
			:: newest == me -> newest = before[me]
			:: else -> before[1 - me] = NOBODY
			fi;
			if
			:: newest != NOBODY -> latch[newest] = true
			:: else
			fi
		}
	:: MUTANT == 17
	fi;
	if
	:: d_step {
			IS_IN(A) && (process[A] == me || (process[A] == NOBODY && !HAS(over, A))) ->
			process[A] = NOBODY;
			over = over & ~BIT(A);
			armed = armed & ~BIT(A);
			due = due & ~BIT(A);
			attend(A);
			if
			:: MUTANT != 13 -> call()
			:: else
			fi
		}
	:: d_step { !(IS_IN(A) && (process[A] == me || (process[A] == NOBODY && !HAS(over, A)))) -> x = 0 }
	fi;
	d_step {
		if
		:: MUTANT == 17 ->
			if
			:: newest == me -> newest = before[me]
			:: else -> before[1 - me] = NOBODY
			fi
		:: else
		fi;
		/* No place keeps the number of a process that has ended. */
		assert(!IS_IN(A) || process[A] != me);
		latch[me] = false;
		before[me] = NOBODY
	}
}

/* ---- a blocked call ---- */

proctype Waiter()
{
	if
	:: d_step { !IS_BLOCKED(W) -> grant(W) }; goto granted
	:: d_step { IS_BLOCKED(W) ->
			/* give_turns: places whose turn nobody has told of */
			call();
			enqueue(W);
			wait_longer(W)
		}
	fi;
sleep:
	if
	:: d_step { latch[W] -> latch[W] = false }
	fi;
	if
	:: d_step { !IS_BLOCKED(W) -> grant(W) }; goto granted
	:: d_step { IS_BLOCKED(W) ->
			/* pass_on */
			if
			:: HAS(due, W) -> call()
			:: else
			fi;
			if
			:: IS_BLOCKED(W) -> wait_longer(W)
			:: else -> latch[W] = true
			fi
		};
		goto sleep
	fi;
granted:
	if
	:: d_step { true -> release(W) }
	fi
}

/* ---- time ---- */

inline ring(r)
{
	if
	:: HAS(armed, r) ->
		armed = armed & ~BIT(r);
		due = due | BIT(r);
		wake(r)
	:: else
	fi
}

/* Something that is in the way of others ends: timers are for that. */
inline time_passes()
{
	ring(A);
	ring(B);
	ring(W)
}

#define MAY_PASS(r) (HAS(called, r) && !HAS(passed, r))
#define MAY_END(r) (IS_IN(r) && process[r] == NOBODY && !HAS(over, r))

proctype Clock()
{
end:
	do
	:: d_step { LIVE -> holder = NOBODY; time_passes() }
	:: d_step { MAY_PASS(A) -> passed = passed | BIT(A); time_passes() }
	:: d_step { MAY_PASS(B) -> passed = passed | BIT(B); time_passes() }
	:: d_step { MAY_END(A) -> over = over | BIT(A); time_passes() }
	:: d_step { MAY_END(B) -> over = over | BIT(B); time_passes() }
	:: d_step { holder == OTHER -> release(OTHER) }
	od
}

init
{
	atomic {
		run Client(A);
		run Client(B);
		run Listener(0);
		run Listener(1);
		run Waiter();
		run Clock()
	}
}
