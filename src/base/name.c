/*-------------------------------------------------------------------------
 *
 * name.c
 *	  Names of locks, owners and modes: limits, hashes, the default owner.
 *
 * NOTES
 *	  A name is its bytes: it is stored and compared in full, without regard to
 *	  collation or case, and a hash of it only ever finds where to search.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/error.h"
#include "base/name.h"

/* Of the hashes; drawn at the start of the server. */
static uint64 seed = 0;

StaticAssertDecl(DLOCK_OWNER_MAX == DLOCK_NAME_MAX, "one limit for both");

/* Throw 22023 unless a name may have "len" bytes.  "what" is its kind, such as "lock name". */
void
dlock_name_check(const char *what, int len)
{
	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", what)));
	if (len > DLOCK_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes; the limit is %d.", len, DLOCK_NAME_MAX)));
}

/* The bytes of a detoasted text, which must outlive the result.  Throws likewise. */
DLockBytes
dlock_name_of_text(const text *value, const char *what)
{
	DLockBytes	bytes = {VARDATA_ANY(value), (int) VARSIZE_ANY_EXHDR(value)};

	dlock_name_check(what, bytes.len);
	return bytes;
}

/* A copy of bytes, palloc'd if there are any. */
DLockBytes
dlock_name_copy(DLockBytes bytes)
{
	if (bytes.len > 0)
		bytes.data = memcpy(palloc(bytes.len), bytes.data, bytes.len);
	return bytes;
}

/* The order of names, by their bytes. */
static int
compare_names(const void *left, const void *right)
{
	const DLockBytes *a = left;
	const DLockBytes *b = right;
	int			order = memcmp(a->data, b->data, Min(a->len, b->len));

	return (order != 0) ? order : a->len - b->len;
}

/* Throw 22023 unless there are names, all of them different. */
void
dlock_name_check_different(const DLockBytes *names, int count)
{
	DLockBytes *sorted = palloc(count * sizeof(DLockBytes));

	memcpy(sorted, names, count * sizeof(DLockBytes));
	qsort(sorted, count, sizeof(DLockBytes), compare_names);
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array of lock names must not be empty")));
	for (int i = 1; i < count; i++)
	{
		if (dlock_name_equal(&sorted[i - 1], &sorted[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid array of lock names"),
					 errdetail("It has \"%.*s\" more than once.", sorted[i].len, sorted[i].data)));
	}
	pfree(sorted);
}

/*
 * The default owner: this session, as %c in log_line_prefix shows it.  The bytes
 * live as long as the backend.
 */
DLockBytes
dlock_name_session(void)
{
	static char buf[64];
	static int	len = 0;

	if (len == 0)
		len = snprintf(buf, sizeof(buf), "%lx.%x",
					   (long) MyStartTime, MyProcPid);
	return dlock_bytes(buf, len);
}

/*
 * Find the ancestors of a path, outermost first: what stands before each of its
 * slashes.  Returns their number; "ancestors" has room for
 * DLOCK_PATH_MAX_PARTS.  They point into the path.
 */
int
dlock_name_ancestors(const DLockBytes *path, DLockBytes *ancestors)
{
	int			count = 0;

	for (int i = 0; i < path->len && count < DLOCK_PATH_MAX_PARTS; i++)
	{
		if (path->data[i] == '/')
			ancestors[count++] = dlock_bytes(path->data, i);
	}
	return count;
}

/* Is a path below another one? */
bool
dlock_name_is_below(const DLockBytes *path, const DLockBytes *above)
{
	return path->len > above->len && path->data[above->len] == '/' &&
		memcmp(path->data, above->data, above->len) == 0;
}

/* The name of a mode, for users. */
const char *
dlock_name_of_mode(DLockMode mode)
{
	static const char *const names[DLOCK_MODES] = {
		"NL", "CR", "CW", "shared", "PW", "exclusive", "permit"
	};

	return names[mode];
}

/* Draw the seed of the hashes; in the postmaster, from which all processes have it. */
void
dlock_name_init(void)
{
	if (!pg_strong_random(&seed, sizeof(seed)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random bytes for dlock")));
}

/*
 * Hash a name or an owner together with the database that it belongs to.  Another start of
 * the server has other hashes, so nobody can choose names that fall together.
 */
uint32
dlock_name_hash(Oid database, const DLockBytes *bytes)
{
	return (uint32) hash_bytes_extended((const unsigned char *) bytes->data, bytes->len, seed + database);
}

/*
 * Hash a name for the tag of a heavyweight lock: the first bits of its SHA-256.  It has no
 * seed, since a prepared transaction keeps such a lock over a restart.  Nobody can find
 * another name with this hash, although pg_locks shows it.
 */
uint64
dlock_name_stable_hash(const DLockBytes *bytes)
{
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	uint64		hash;

	if (pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, (const uint8 *) bytes->data, bytes->len) < 0 ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(context));
	pg_cryptohash_free(context);
	memcpy(&hash, digest, sizeof(hash));
	return hash;
}

/* A name as a value of SQL, palloc'd. */
Datum
dlock_name_to_text(DLockBytes bytes)
{
	return PointerGetDatum(cstring_to_text_with_len(bytes.data, bytes.len));
}

/* A payload as a value of SQL, likewise. */
Datum
dlock_name_payload_to_jsonb(DLockBytes bytes)
{
	struct varlena *value = palloc(VARHDRSZ + bytes.len);

	SET_VARSIZE(value, VARHDRSZ + bytes.len);
	memcpy(VARDATA(value), bytes.data, bytes.len);
	return PointerGetDatum(value);
}
