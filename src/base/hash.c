/*-------------------------------------------------------------------------
 *
 * hash.c
 *	  Hashes whose collisions no client can choose.
 *
 * NOTES
 *	  Users choose names, and locks of the server have hashes of names for keys.
 *	  With the server's own functions, which have no secret, a role could find a name
 *	  with the hash of another one, and hold up what it may not use.  A secret
 *	  number as their seed would not do: pg_locks shows hashes, from which it can be
 *	  computed.  So this is SipHash-2-4 (Aumasson and Bernstein, 2012), whose
 *	  results do not tell its key.
 *
 *	  The key is in pg_control, where the server keeps random bytes of the cluster
 *	  for another secret of this kind; no SQL function shows them.  It is the same
 *	  after a restart and on standbys, because a prepared transaction keeps its
 *	  locks.  Nothing else stores these hashes.
 *
 * IDENTIFICATION
 *	  src/base/hash.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"

#include "base/hash.h"

#define ROTATE(x, bits)	(((x) << (bits)) | ((x) >> (64 - (bits))))

static inline void
mix(uint64 v[4])
{
	v[0] += v[1];
	v[1] = ROTATE(v[1], 13) ^ v[0];
	v[0] = ROTATE(v[0], 32);
	v[2] += v[3];
	v[3] = ROTATE(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATE(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATE(v[1], 17) ^ v[2];
	v[2] = ROTATE(v[2], 32);
}

static inline void
add_word(uint64 v[4], uint64 word)
{
	v[3] ^= word;
	mix(v);
	mix(v);
	v[0] ^= word;
}

/* Hash a number and the bytes that follow it. */
uint64
dlock_hash_bytes(uint64 number, const char *data, int len)
{
	static uint64 key[2];
	static bool known = false;
	uint64		v[4];
	uint64		last = 0;
	uint64		size = sizeof(number) + len;

	if (!known)
	{
		memcpy(key, GetMockAuthenticationNonce(), sizeof(key));
		known = true;
	}
	v[0] = key[0] ^ UINT64CONST(0x736f6d6570736575);
	v[1] = key[1] ^ UINT64CONST(0x646f72616e646f6d);
	v[2] = key[0] ^ UINT64CONST(0x6c7967656e657261);
	v[3] = key[1] ^ UINT64CONST(0x7465646279746573);

	add_word(v, number);
	for (; len >= (int) sizeof(uint64); data += sizeof(uint64), len -= sizeof(uint64))
	{
		uint64		word;

		memcpy(&word, data, sizeof(word));
		add_word(v, word);
	}
	memcpy(&last, data, len);
	add_word(v, last | (size << 56));
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		mix(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
