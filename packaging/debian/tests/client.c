/* A lease, a loss and a deadlock, with a session for the server of libpq's variables. */

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <dlock.h>

static dlock_session *session;
static pthread_barrier_t both;

static void
check(bool is_true, const char *what, const dlock_error *error)
{
	if (!is_true)
	{
		fprintf(stderr, "%s: %s\n", what, error->message);
		_exit(1);
	}
}

static void
sql(PGconn *conn, const char *command)
{
	PGresult   *result = PQexec(conn, command);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		fprintf(stderr, "%s: %s\n", command, PQerrorMessage(conn));
		_exit(1);
	}
	PQclear(result);
}

/* Take two locks; how the second one is obtained is the result. */
static void *
cross(void *argument)
{
	const char **names = argument;
	dlock_error error;
	dlock_options options = {.wait_ms = 60000};
	dlock_lease *first;
	dlock_lease *second;
	dlock_status status;

	check(dlock_acquire(session, names[0], &options, &first, &error) == DLOCK_OK, names[0], &error);
	pthread_barrier_wait(&both);
	options.task = dlock_lease_task(first);
	status = dlock_acquire(session, names[1], &options, &second, &error);
	if (status == DLOCK_OK)
	{
		dlock_lease_release(second, &error);
		dlock_lease_free(second);
	}
	dlock_lease_release(first, &error);
	dlock_lease_free(first);
	return (void *) (intptr_t) status;
}

int
main(void)
{
	PGconn	   *conn = PQconnectdb("");
	dlock_error error;
	dlock_lease *lease;
	dlock_lease *other;
	pthread_t	threads[2];
	const char *names[2][2] = {{"a", "b"}, {"b", "a"}};
	void	   *ends[2];

	session = dlock_open("", NULL, &error);
	check(session != NULL, "a session", &error);

	check(dlock_acquire(session, "job", NULL, &lease, &error) == DLOCK_OK, "a lease", &error);
	check(dlock_lease_begin(lease, conn, &error) == DLOCK_OK, "a transaction", &error);
	sql(conn, "SELECT 1");
	check(dlock_lease_commit(lease, conn, &error) == DLOCK_OK, "its end", &error);
	check(dlock_acquire(session, "job", NULL, &other, &error) == DLOCK_REFUSED, "a refusal", &error);
	check(strcmp(error.holder, dlock_lease_owner(lease)) == 0, "its holder", &error);
	check(dlock_lease_release(lease, &error) == DLOCK_OK, "a release", &error);
	dlock_lease_free(lease);

	check(dlock_acquire(session, "lost", NULL, &lease, &error) == DLOCK_OK, "another lease", &error);
	sql(conn, "SELECT dlock_force_release('lost', 'test')");
	while (dlock_lease_held(lease))
		poll(NULL, 0, 100);
	check(dlock_lease_release(lease, &error) == DLOCK_LOST, "a loss", &error);
	dlock_lease_free(lease);

	pthread_barrier_init(&both, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, cross, names[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], &ends[i]);
	check(((intptr_t) ends[0] == DLOCK_DEADLOCK && (intptr_t) ends[1] == DLOCK_OK) ||
		  ((intptr_t) ends[0] == DLOCK_OK && (intptr_t) ends[1] == DLOCK_DEADLOCK), "a deadlock", &error);

	dlock_close(session);
	PQfinish(conn);
	return 0;
}
