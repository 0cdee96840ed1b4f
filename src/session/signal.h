/*-------------------------------------------------------------------------
 *
 * signal.h
 *	  Wake up sessions that wait for the rows of a queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_SIGNAL_H
#define DLOCK_SIGNAL_H

extern void dlock_signal_request(void);
extern void dlock_signal_startup(void);
extern void dlock_signal_at_commit(int32 queue);
extern void dlock_signal_end_transaction(bool committed);
extern uint64 dlock_signal_seen(int32 queue);
extern void dlock_signal_wait(int32 queue, uint64 seen, long timeout_ms);

#endif							/* DLOCK_SIGNAL_H */
