/*-------------------------------------------------------------------------
 *
 * hash.h
 *	  Hashes whose collisions no client can choose.
 *
 * IDENTIFICATION
 *	  src/base/hash.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_HASH_H
#define DLOCK_HASH_H

extern uint64 dlock_hash_bytes(uint64 number, const char *data, int len);

#endif							/* DLOCK_HASH_H */
