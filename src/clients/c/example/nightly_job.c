/*-------------------------------------------------------------------------
 *
 * nightly_job.c
 *	  A nightly job: each of several machines starts it, and one of them
 *	  does the work.
 *
 *		make -C src/clients/c install && ldconfig
 *		cc -o nightly_job src/clients/c/example/nightly_job.c $(pkg-config --cflags --libs dlock)
 *		PGHOST=... ./nightly_job
 *
 * The table and its guard are those of doc/tutorial/nightly-job.md.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>

#include <dlock.h>

#define DAY_MS INT64_C(86400000)

/* Make the report under the lease: the last steps of main(). */
static dlock_status
make_report(dlock_lease *lease, dlock_error *error)
{
	PGconn	   *conn = PQconnectdb("");
	char		line[100];
	const char *params[] = {line};

	/*
	 * 3. In long work, look often whether the lease is still held.
	 *
	 * 4. Write in a transaction that presents the token.
	 */
	snprintf(line, sizeof(line), "made under token %lld", (long long) dlock_lease_token(lease));
	if (dlock_lease_status(lease, error) == DLOCK_OK && dlock_lease_begin(lease, conn, error) == DLOCK_OK)
	{
		PGresult   *result = PQexecParams(conn, "INSERT INTO report VALUES ($1)", 1, NULL, params, NULL, NULL, 0);

		/* If this has failed, so does the commit; this tells why. */
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			fputs(PQresultErrorMessage(result), stderr);
		PQclear(result);
		dlock_lease_commit(lease, conn, error);
	}
	PQfinish(conn);
	return error->status;
}

int
main(void)
{
	dlock_error error;
	dlock_session *session = dlock_open("", NULL, &error);
	dlock_options options = {.ttl_ms = 60000};
	dlock_lease *lease = NULL;
	int64_t		day = 0;
	int			code = 1;

	options.wait_ms = 3600000;

	/* 1. The first machine of a day wins it.  The day is that of UTC. */
	if (session != NULL && dlock_once(session, "nightly-report", DAY_MS, &day, &error) == DLOCK_OK && day == 0)
	{
		fputs("another machine makes the report of this day\n", stderr);
		code = 75;
	}

	/*
	 * 2. Take the lock.  The last run may still hold it, so wait.  The
	 * session renews the lease.
	 */
	else if (day != 0 && dlock_acquire(session, "nightly-report", &options, &lease, &error) == DLOCK_OK)
	{
		if (make_report(lease, &error) == DLOCK_OK && dlock_lease_release(lease, &error) == DLOCK_OK)
			code = 0;
		dlock_lease_free(lease);
	}

	if (error.status == DLOCK_REFUSED)
	{
		fprintf(stderr, "%s still makes an earlier report\n", error.holder);
		code = 75;
	}
	else if (error.status != DLOCK_OK)
		fprintf(stderr, "%s\n", error.message);
	dlock_close(session);
	return code;
}
