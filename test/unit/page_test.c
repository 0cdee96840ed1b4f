/* link: src/store/page.o */
/*
 * page_test.c
 *	  The format of the lease store's pages: what is written is read back, in
 *	  its place and nowhere else, and what was never written is no lease.
 */
#include "postgres.h"

#include <stdio.h>

#include "store/page.h"

/* The server's own is in a library that this is not linked with. */
#undef printf

/* What the pages need of a server. */
void
PageInit(Page page, Size pageSize, Size specialSize)
{
	PageHeader	p = (PageHeader) page;

	memset(p, 0, pageSize);
	p->pd_lower = SizeOfPageHeaderData;
	p->pd_upper = pageSize - specialSize;
	p->pd_special = pageSize - specialSize;
	PageSetPageSizeAndVersion(page, pageSize, PG_PAGE_LAYOUT_VERSION);
}

/*
 * Called by objects built with assertions.  Its other arguments depend on the
 * version of PostgreSQL, hence the detour around its declaration.
 */
extern void fail_assertion(const char *condition) __asm__("ExceptionalCondition");

void
fail_assertion(const char *condition)
{
	printf("Bail out! %s\n", condition);
	exit(1);
}

static int	test_count = 0;
static int	failures = 0;
static bool current_ok;

#define CHECK(condition) \
	do { \
		if (!(condition)) \
		{ \
			if (current_ok) \
				printf("# line %d: %s\n", __LINE__, #condition); \
			current_ok = false; \
		} \
	} while (0)

static void
end_test(const char *name)
{
	test_count++;
	printf("%s %d - %s\n", current_ok ? "ok" : "not ok", test_count, name);
	failures += !current_ok;
}

static uint32 seed = 1;

/* The same numbers each time, everywhere. */
static uint32
next_random(uint32 below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % below;
}

static PGAlignedBlock block;
static PGAlignedBlock before;
static Page const page = (Page) block.data;

/* Bytes to make texts of; a zero byte and others that no text has included. */
static char bytes[4096];

typedef struct Model
{
	bool		taken;
	DLockLeaseValue lease;
} Model;

static DLockLeaseValue
random_lease(int slot_class)
{
	static const int room[DLOCK_PAGE_CLASSES] = {68, 510, 1534};
	DLockLeaseValue lease = {0};
	int			left = room[slot_class];

	lease.token = ((DLockToken) next_random(1 << 24) << 38) + next_random(1 << 24) + 1;
	lease.mode = (DLockMode) next_random(DLOCK_MODES);
	lease.bind = (DLockBind) next_random(DLOCK_BIND_TRANSACTION + 1);
	lease.part = (DLockPart) next_random(DLOCK_PART_PATH + 1);
	lease.holds = next_random(1 << 24) * 255 + 1;
	lease.permits = next_random(1 << 24) * 127;
	lease.delay = next_random(1 << 24) * INT64CONST(255000);
	lease.min_hold = next_random(1 << 24) * INT64CONST(255000);
	lease.role = next_random(1 << 24) * 255;
	lease.granted_at = (int64) next_random(1 << 24) * next_random(1 << 24);
	lease.origin = (uint64) next_random(1 << 24) << 40 | next_random(1 << 24);
	lease.term.ttl = (int64) next_random(1 << 24) * 128 + 1;
	lease.term.bound_mono = (int64) next_random(1 << 24) * next_random(1 << 24);
	lease.term.bound_wall = -(int64) next_random(1 << 24) * next_random(1 << 24);
	lease.name.len = 1 + next_random(Min(DLOCK_NAME_MAX, left - 1));
	left -= lease.name.len;
	lease.owner.len = 1 + next_random(Min(DLOCK_OWNER_MAX, left));
	left -= lease.owner.len;
	lease.payload.len = next_random(Min(DLOCK_PAYLOAD_MAX, left) + 1);
	lease.name.data = bytes + next_random(1024);
	lease.owner.data = bytes + next_random(1024);
	lease.payload.data = bytes + next_random(1024);
	return lease;
}

static bool
same_bytes(const DLockBytes *a, const DLockBytes *b)
{
	return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}

static bool
same_lease(const DLockLeaseValue *a, const DLockLeaseValue *b)
{
	return a->token == b->token && a->mode == b->mode && a->role == b->role &&
		a->bind == b->bind && a->part == b->part && a->holds == b->holds &&
		a->permits == b->permits && a->delay == b->delay && a->min_hold == b->min_hold &&
		a->granted_at == b->granted_at && a->origin == b->origin &&
		a->term.ttl == b->term.ttl && a->term.bound_mono == b->term.bound_mono &&
		a->term.bound_wall == b->term.bound_wall &&
		same_bytes(&a->name, &b->name) && same_bytes(&a->owner, &b->owner) &&
		same_bytes(&a->payload, &b->payload);
}

static void
check_page(const Model *model, int slot_class, uint64 incarnation)
{
	CHECK(dlock_page_class(page, incarnation) == slot_class);
	CHECK(((PageHeader) page)->pd_lower <= ((PageHeader) page)->pd_upper);
	for (int place = 0; place < dlock_page_slot_count(slot_class); place++)
	{
		DLockLeaseValue lease;

		CHECK(dlock_page_read(page, place, &lease) == model[place].taken);
		if (model[place].taken)
			CHECK(same_lease(&lease, &model[place].lease));
	}

	/* The hole, which full-page images leave out, holds nothing. */
	for (int i = ((PageHeader) page)->pd_lower; i < ((PageHeader) page)->pd_upper; i++)
		CHECK(block.data[i] == 0);
}

static void
test_changes(void)
{
	current_ok = true;
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		int			count = dlock_page_slot_count(slot_class);

		for (int round = 0; round < 50; round++)
		{
			Model		model[DLOCK_PAGE_MAX_SLOTS] = {{0}};
			uint64		incarnation = round;

			/* Whatever was there before. */
			memset(block.data, round % 3 == 0 ? 0xFF : 0, BLCKSZ);
			dlock_page_init(page, incarnation, slot_class, InvalidOid);
			check_page(model, slot_class, incarnation);
			for (int step = 0; step < 300; step++)
			{
				int			place = next_random(count);
				Model	   *slot = &model[place];

				if (!slot->taken || next_random(4) == 0)
				{
					slot->lease = random_lease(slot_class);
					slot->taken = true;
					dlock_page_write(page, place, &slot->lease);
				}
				else if (next_random(2) == 0)
				{
					slot->taken = false;
					dlock_page_erase(page, place, NULL);
				}
				else
				{
					DLockLeaseValue other = random_lease(slot_class);

					slot->lease.term = other.term;
					slot->lease.origin = other.origin;
					slot->lease.delay = other.delay;
					slot->lease.holds = other.holds;
					dlock_page_set_state(page, place, &other);
				}
				check_page(model, slot_class, incarnation);
			}
		}
	}
	end_test("writes, erasures and new states, in any order, on pages of all classes");
}

static void
test_layout(void)
{
	static const int sizes[DLOCK_PAGE_CLASSES] = {144, 640, 2016};

	current_ok = true;
	CHECK(dlock_page_slot_count(0) == 56);
	CHECK(dlock_page_slot_count(1) == 12);
	CHECK(dlock_page_slot_count(2) == 4);
	for (int len = 2; len <= DLOCK_NAME_MAX + DLOCK_OWNER_MAX + DLOCK_PAYLOAD_MAX; len++)
	{
		int			slot_class = dlock_page_class_for(len);

		CHECK(slot_class >= 0 && slot_class < DLOCK_PAGE_CLASSES);
		CHECK(76 + len <= sizes[slot_class]);
		if (slot_class > 0)
			CHECK(76 + len > sizes[slot_class - 1]);
	}
	for (int slot_class = 0; slot_class < DLOCK_PAGE_CLASSES; slot_class++)
	{
		CHECK(dlock_page_slot_count(slot_class) <= DLOCK_PAGE_MAX_SLOTS);
		CHECK(64 + dlock_page_slot_count(slot_class) * sizes[slot_class] <= BLCKSZ);
	}
	end_test("a lease goes to the smallest class that it fits");

	current_ok = true;
	for (BlockNumber b = 1; b <= DLOCK_SLOT_MAX_BLOCK && b != 0; b = b * 3 + 1)
	{
		for (int place = 0; place < DLOCK_PAGE_MAX_SLOTS; place++)
		{
			DLockSlot	slot = dlock_slot_make(b, place);

			CHECK(slot != DLOCK_SLOT_NONE);
			CHECK(dlock_slot_block(slot) == b);
			CHECK(dlock_slot_number(slot) == place);
		}
	}
	CHECK(dlock_slot_block(dlock_slot_make(DLOCK_SLOT_MAX_BLOCK, 62)) == DLOCK_SLOT_MAX_BLOCK);
	end_test("a slot is its block and place");
}

static void
test_spans(void)
{
	DLockLeaseValue lease = random_lease(0);
	DLockLeaseValue read;

	current_ok = true;
	dlock_page_init(page, 7, 0, InvalidOid);
	for (DLockTime span = 0; span < 5000; span++)
	{
		lease.delay = lease.min_hold = span;
		dlock_page_write(page, 3, &lease);
		CHECK(dlock_page_read(page, 3, &read));
		CHECK(read.delay >= span && read.delay < span + 1000 && read.delay % 1000 == 0);
		CHECK(read.min_hold == read.delay);
	}
	lease.delay = PG_INT64_MAX / 2;
	dlock_page_write(page, 3, &lease);
	CHECK(dlock_page_read(page, 3, &read) && read.delay == (DLockTime) PG_UINT32_MAX * 1000);
	end_test("a delay is kept in milliseconds, rounded up, and does not overflow");
}

static void
test_longest(void)
{
	DLockLeaseValue lease = random_lease(0);
	DLockLeaseValue read;

	current_ok = true;
	lease.name = dlock_bytes(bytes, DLOCK_NAME_MAX);
	lease.owner = dlock_bytes(bytes + 300, DLOCK_OWNER_MAX);
	lease.payload = dlock_bytes(bytes + 700, DLOCK_PAYLOAD_MAX);
	dlock_page_init(page, 7, 2, InvalidOid);
	for (int place = 0; place < 4; place++)
		dlock_page_write(page, place, &lease);
	for (int place = 0; place < 4; place++)
		CHECK(dlock_page_read(page, place, &read) && same_lease(&read, &lease));
	end_test("the longest lease fits the last place of its page");
}

static void
test_kinds(void)
{
	current_ok = true;
	memset(block.data, 0, BLCKSZ);
	CHECK(dlock_page_class(page, 0) == DLOCK_PAGE_UNUSED);

	memset(block.data, 0xA5, BLCKSZ);
	dlock_page_init(page, 42, 0, 12345);
	CHECK(dlock_page_head(page)->magic == DLOCK_PAGE_META_MAGIC);
	CHECK(dlock_page_head(page)->version == DLOCK_PAGE_VERSION);
	CHECK(dlock_page_head(page)->database == 12345 && dlock_page_head(page)->incarnation == 42);
	CHECK(dlock_page_class(page, 42) == DLOCK_PAGE_DAMAGED);

	dlock_page_init(page, 42, 1, InvalidOid);
	CHECK(dlock_page_head(page)->magic != DLOCK_PAGE_META_MAGIC);
	CHECK(dlock_page_class(page, 42) == 1);
	CHECK(dlock_page_class(page, 43) == DLOCK_PAGE_UNUSED);

	/* A page that another program has written, or that is broken. */
	memcpy(before.data, block.data, BLCKSZ);
	for (int i = 24; i < 32; i++)
	{
		memcpy(block.data, before.data, BLCKSZ);
		block.data[i] ^= 0x40;
		CHECK(dlock_page_class(page, 42) == DLOCK_PAGE_DAMAGED);
	}
	memcpy(block.data, before.data, BLCKSZ);
	((PageHeader) page)->pd_lower = SizeOfPageHeaderData;
	CHECK(dlock_page_class(page, 42) == DLOCK_PAGE_DAMAGED);
	end_test("meta pages, pages of slots, unused and damaged ones are told apart");
}

int
main(void)
{
	for (int i = 0; i < (int) sizeof(bytes); i++)
		bytes[i] = (char) (i * 7 + i / 256);
	printf("1..6\n");
	test_layout();
	test_changes();
	test_spans();
	test_longest();
	test_kinds();
	return failures > 0;
}
