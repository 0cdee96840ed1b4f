/*-------------------------------------------------------------------------
 *
 * signal.h
 *	  What wakes a process besides a turn: changes of leases, and tasks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SIGNAL_H
#define DLOCK_SIGNAL_H

/* set-up */
extern void dlock_signal_request(void);
extern void dlock_signal_startup(void);

/* changes of the leases on a lock */
extern void dlock_signal_listen(uint32 hash);
extern void dlock_signal_end_listening(void);
extern bool dlock_signal_is_any_listening(void);
extern void dlock_signal_tell(uint32 hash);
extern void dlock_signal_tell_all(void);

/* tasks of a queue */
extern void dlock_signal_at_commit(int32 queue);
extern void dlock_signal_end_transaction(bool committed);
extern uint64 dlock_signal_seen(int32 queue);
extern void dlock_signal_wait(int32 queue, uint64 seen, long timeout_ms);

#endif							/* DLOCK_SIGNAL_H */
