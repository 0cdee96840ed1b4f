/*-------------------------------------------------------------------------
 *
 * shards.c
 *	  Several servers, each of which has the locks of some names.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "internal.h"

struct dlock_shards
{
	unsigned int count;
	dlock_session *sessions[];
};

unsigned int
dlock_shard_of(const char *name, unsigned int count)
{
	uint32_t	crc = ~(uint32_t) 0;

	for (; *name != '\0'; name++)
	{
		crc ^= (unsigned char) *name;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320 : 0);
	}
	return ~crc % count;
}

dlock_shards *
dlock_open_shards(const char *const *conninfos, unsigned int count, const dlock_session_options *options, dlock_error *error)
{
	dlock_session_options o = {0};
	dlock_shards *shards;

	if (count == 0)
	{
		fail(error, DLOCK_ERROR, "at least one server is needed");
		return NULL;
	}
	shards = calloc(1, sizeof(*shards) + count * sizeof(shards->sessions[0]));
	if (shards == NULL)
	{
		fail(error, DLOCK_ERROR, "out of memory");
		return NULL;
	}
	if (options != NULL)
		o = *options;
	for (; shards->count < count; shards->count++)
	{
		shards->sessions[shards->count] = dlock_open(conninfos[shards->count], &o, error);
		if (shards->sessions[shards->count] == NULL)
		{
			dlock_close_shards(shards);
			return NULL;
		}
		o.client = dlock_client(shards->sessions[0]);
	}
	return shards;
}

void
dlock_close_shards(dlock_shards *shards)
{
	for (unsigned int i = 0; shards != NULL && i < shards->count; i++)
		dlock_close(shards->sessions[i]);
	free(shards);
}

dlock_session *
dlock_shards_session(const dlock_shards *shards, unsigned int number)
{
	return shards->sessions[number];
}

static dlock_session *
session_of(const dlock_shards *shards, const char *name)
{
	return dlock_shards_session(shards, dlock_shard_of(name, shards->count));
}

dlock_status
dlock_shards_acquire(dlock_shards *shards, const char *name, const dlock_options *options, dlock_lease **lease,
					 dlock_error *error)
{
	return dlock_acquire(session_of(shards, name), name, options, lease, error);
}

dlock_status
dlock_shards_once(dlock_shards *shards, const char *name, int64_t every_ms, int64_t *token, dlock_error *error)
{
	return dlock_once(session_of(shards, name), name, every_ms, token, error);
}

dlock_status
dlock_shards_elect(dlock_shards *shards, const char *name, const dlock_options *options,
				   bool (*lead) (dlock_lease *lease, void *argument), void *argument, dlock_error *error)
{
	return dlock_elect(session_of(shards, name), name, options, lead, argument, error);
}

dlock_status
dlock_shards_watch(dlock_shards *shards, const char *name, int64_t every_ms, int give_up_fd,
				   bool (*see) (int64_t token, const char *owner, const char *payload, void *argument), void *argument,
				   dlock_error *error)
{
	return dlock_watch(session_of(shards, name), name, every_ms, give_up_fd, see, argument, error);
}
