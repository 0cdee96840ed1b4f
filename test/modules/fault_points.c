/*-------------------------------------------------------------------------
 *
 * fault_points.c
 *	  Fault points: where a test can stop a process, or have something fail.
 *
 * NOTES
 *	  A part of a library that is made with "make FAULTS=1", and of no other
 *	  (src/base/fault.h).  Points have names.  A test arms one
 *	  for the nth time that it is passed, by one process or by any; that
 *	  happens once.  A process that stops waits until the point is disarmed.
 *	  It does so anywhere, also under LWLocks and in critical sections, and
 *	  leaves its latch alone, since a lost wake-up may be what the test is
 *	  about.  Errors are never thrown in a critical section.
 *
 *	  The name of an armed point may end with an asterisk: then it is any point
 *	  whose name begins so.
 *
 *	  Lock rules.  All is protected by the mutex, under which nothing else is
 *	  locked.  Whether anything is armed is read without it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "pgstat.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/guc.h"

#include "base/compat.h"

/* So many points can be armed at a time. */
#define ARMED_MAX		8

/* How often a process that is stopped looks, in microseconds. */
#define LOOK_INTERVAL	500

/* A point that is armed. */
typedef struct DLockFaultArmed
{
	char		name[DLOCK_FAULT_NAME]; /* empty: this place is free */
	DLockFaultKind kind;
	int			pid;			/* the process, or zero: any */
	int			left;			/* how often it is passed till then */
	int			hit;			/* the process that it happened to, or zero */
	uint32		serial;			/* tells this arming from others */
} DLockFaultArmed;

typedef struct DLockFaultShared
{
	slock_t		mutex;
	pg_atomic_uint32 count;		/* of armed points */
	uint32		serial;
	DLockFaultArmed armed[ARMED_MAX];
} DLockFaultShared;

/* Set once, in the postmaster. */
static DLockFaultShared *faults = NULL;
static uint32 stop_event = 0;

void
dlock_fault_request(void)
{
	RequestAddinShmemSpace(sizeof(DLockFaultShared));
	dlock_fault_clock_request();
	dlock_fault_counts_request();
}

/* With AddinShmemInitLock held. */
void
dlock_fault_startup(void)
{
	bool		found;

	faults = ShmemInitStruct("dlock faults", sizeof(DLockFaultShared), &found);
	if (!found)
	{
		memset(faults, 0, sizeof(DLockFaultShared));
		SpinLockInit(&faults->mutex);
		pg_atomic_init_u32(&faults->count, 0);
	}
	dlock_fault_clock_startup();
	dlock_fault_counts_startup();
}

static DLockFaultArmed *
find_armed(const char *name)
{
	for (int i = 0; i < ARMED_MAX; i++)
	{
		if (strcmp(faults->armed[i].name, name) == 0)
			return &faults->armed[i];
	}
	return NULL;
}

/*
 * Arm a point for the nth time (from one) that process "pid" passes it; zero: any
 * process.  Throws if it is armed already, or too many are.
 */
void
dlock_fault_arm(const char *name, DLockFaultKind kind, int pid, int nth)
{
	DLockFaultArmed *place = NULL;

	if (name[0] == '\0' || strlen(name) >= DLOCK_FAULT_NAME)
		elog(ERROR, "no name of a fault point: %s", name);
	SpinLockAcquire(&faults->mutex);
	if (find_armed(name) == NULL)
		place = find_armed("");
	if (place != NULL)
	{
		strcpy(place->name, name);
		place->kind = kind;
		place->pid = pid;
		place->left = nth;
		place->hit = 0;
		place->serial = ++faults->serial;
		pg_atomic_fetch_add_u32(&faults->count, 1);
	}
	SpinLockRelease(&faults->mutex);
	if (place == NULL)
		elog(ERROR, "fault point %s is armed already, or too many are", name);
}

/* Disarm a point, and let the process go on that is stopped there. */
bool
dlock_fault_disarm(const char *name)
{
	DLockFaultArmed *place;

	SpinLockAcquire(&faults->mutex);
	place = find_armed(name);
	if (place != NULL)
	{
		place->name[0] = '\0';
		pg_atomic_fetch_sub_u32(&faults->count, 1);
	}
	SpinLockRelease(&faults->mutex);
	return place != NULL;
}

/* The process that an armed point has happened to; zero if none. */
int
dlock_fault_hit(const char *name)
{
	DLockFaultArmed *place;
	int			pid = 0;

	SpinLockAcquire(&faults->mutex);
	place = find_armed(name);
	if (place != NULL)
		pid = place->hit;
	SpinLockRelease(&faults->mutex);
	return pid;
}

/* Does a process stand at a point? */
bool
dlock_fault_stops(int pid)
{
	bool		stops = false;

	SpinLockAcquire(&faults->mutex);
	for (int i = 0; i < ARMED_MAX && !stops; i++)
		stops = faults->armed[i].name[0] != '\0' && faults->armed[i].hit == pid &&
			faults->armed[i].kind == DLOCK_FAULT_KIND_STOP;
	SpinLockRelease(&faults->mutex);
	return stops;
}

static bool
is_meant(const DLockFaultArmed *place, const char *name)
{
	size_t		len = strlen(place->name);

	if (len > 0 && place->name[len - 1] == '*')
		return strncmp(place->name, name, len - 1) == 0;
	return len > 0 && strcmp(place->name, name) == 0;
}

/* This process passes a point.  Does this kind of thing happen now?  Returns the arming, or NULL. */
static DLockFaultArmed *
pass(const char *name, DLockFaultKind kind, uint32 *serial)
{
	DLockFaultArmed *happens = NULL;

	if (faults == NULL || pg_atomic_read_u32(&faults->count) == 0)
		return NULL;
	SpinLockAcquire(&faults->mutex);
	for (int i = 0; i < ARMED_MAX && happens == NULL; i++)
	{
		DLockFaultArmed *place = &faults->armed[i];

		if (place->kind != kind || place->hit != 0 || !is_meant(place, name) ||
			(place->pid != 0 && place->pid != MyProcPid) || --place->left > 0)
			continue;
		place->hit = MyProcPid;
		*serial = place->serial;
		happens = place;
	}
	SpinLockRelease(&faults->mutex);
	return happens;
}

/* Stop here if a test wants that. */
void
dlock_fault_stop(const char *name)
{
	uint32		serial;
	DLockFaultArmed *place = pass(name, DLOCK_FAULT_KIND_STOP, &serial);

	if (place == NULL)
		return;
	if (stop_event == 0 && CritSectionCount == 0)
		stop_event = WaitEventExtensionNew("DLockFault");
	pgstat_report_wait_start(stop_event != 0 ? stop_event : PG_WAIT_EXTENSION);
	for (;;)
	{
		bool		goes_on;

		SpinLockAcquire(&faults->mutex);
		goes_on = place->name[0] == '\0' || place->serial != serial;
		SpinLockRelease(&faults->mutex);
		if (goes_on)
			break;
		if (!PostmasterIsAlive())
			_exit(1);
		pg_usleep(LOOK_INTERVAL);
	}
	pgstat_report_wait_end();
}

/* Does what follows fail? */
bool
dlock_fault_fails(const char *name)
{
	uint32		serial;

	return CritSectionCount == 0 && pass(name, DLOCK_FAULT_KIND_ERROR, &serial) != NULL;
}

/*
 * Has a test switched something off, by a setting like "dlock_test.worker = off"?  The
 * process shows it as its state.
 */
bool
dlock_fault_is_off(const char *name)
{
	char		setting[DLOCK_FAULT_NAME + 16];
	const char *value;
	bool		is_off;

	snprintf(setting, sizeof(setting), "dlock_test.%s", name);
	value = GetConfigOption(setting, true, false);
	is_off = value != NULL && strcmp(value, "off") == 0;

	pgstat_report_activity(is_off ? STATE_DISABLED : STATE_IDLE, NULL);
	return is_off;
}

/* Stop here, or throw. */
void
dlock_fault_point(const char *name)
{
	dlock_fault_stop(name);
	if (dlock_fault_fails(name))
		ereport(ERROR,
				(errcode(ERRCODE_IO_ERROR),
				 errmsg("fault at \"%s\"", name)));
}

/* There is no memory, if a test wants that. */
void
dlock_fault_memory(const char *name)
{
	if (dlock_fault_fails(name))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("fault at \"%s\"", name)));
}

/* The query is canceled where interrupts are served, if a test wants that. */
void
dlock_fault_interrupt(void)
{
	if (InterruptHoldoffCount == 0 && QueryCancelHoldoffCount == 0 && dlock_fault_fails("interrupt"))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("fault at \"interrupt\"")));
}
