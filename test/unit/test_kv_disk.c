/*
 * test_kv_disk.c
 *	  Cached blocks on disk: what was stored is found after a restart, and whatever happens to the files costs only time.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/kv_disk.h"
#include "rig.h"

#define BLOCK_BYTES 1000
#define STRIDE      4096 /* of a record of so many bytes */
#define PLACES      5

static char folder[64];

static int
make_folder(void **state)
{
	(void) state;
	strcpy(folder, "/tmp/dsv3-test-disk.XXXXXX");
	return mkdtemp(folder) == NULL;
}

static const char *
file(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static int
remove_folder(void **state)
{
	(void) state;
	(void) unlink(file("key"));
	(void) unlink(file("blocks"));
	return rmdir(folder);
}

static void
on_wake(void *arg)
{
	(void) arg;
}

static Dsv3KvDisk *
try_open(const char *identity, size_t block_bytes, Dsv3Error *err)
{
	Dsv3KvDiskOptions options = {.folder = folder,
								 .max_bytes = 4096 + PLACES * STRIDE,
								 .block_bytes = block_bytes,
								 .identity = identity,
								 .wake = on_wake};

	return dsv3_kv_disk_open(&options, err);
}

static Dsv3KvDisk *
open_disk(void)
{
	Dsv3Error err;
	Dsv3KvDisk *disk = try_open("model", BLOCK_BYTES, &err);

	if (disk == NULL)
		fail_msg("%s", err.message);
	return disk;
}

static Dsv3BlockName
name_of(int number)
{
	Dsv3BlockName name;

	memset(&name, number, sizeof(name));
	return name;
}

static Dsv3KvDiskEvent
wait_for(Dsv3KvDisk *disk)
{
	Dsv3KvDiskEvent event;

	for (int ms = 0; ms < 5000; ms++)
	{
		if (dsv3_kv_disk_next(disk, &event))
			return event;
		usleep(1000);
	}
	fail_msg("nothing happened");
	return event;
}

static void
store(Dsv3KvDisk *disk, int number)
{
	Dsv3BlockName name = name_of(number);
	char rows[BLOCK_BYTES];
	bool full;

	memset(rows, number + 1, sizeof(rows));
	assert_true(dsv3_kv_disk_store(disk, &name, number, rows, &full));
	assert_int_equal(wait_for(disk).type, DSV3_DISK_STORED);
}

/* 1 and the right rows, 0 not there, -1 lost. */
static int
load(Dsv3KvDisk *disk, int number)
{
	Dsv3BlockName name = name_of(number);
	Dsv3KvDiskEvent event;
	char rows[BLOCK_BYTES];

	if (!dsv3_kv_disk_load(disk, &name))
		return 0;
	event = wait_for(disk);
	assert_memory_equal(&event.name, &name, sizeof(name));
	if (event.type == DSV3_DISK_LOST)
		return -1;
	memset(rows, number + 1, sizeof(rows));
	assert_memory_equal(event.data, rows, sizeof(rows));
	return 1;
}

static void
close_disk(Dsv3KvDisk *disk)
{
	dsv3_kv_disk_close(disk);
}

/* -- good files -- */

static void
survives_restart(void **state)
{
	Dsv3KvDisk *disk = open_disk();
	uint8_t secret[DSV3_SECRET_BYTES];
	struct stat st;
	Dsv3BlockName name = name_of(1);
	bool full;

	(void) state;
	memcpy(secret, dsv3_kv_disk_secret(disk), sizeof(secret));
	for (int i = 0; i < 3; i++)
		store(disk, i);
	assert_int_equal(load(disk, 1), 1);
	assert_int_equal(load(disk, 3), 0);
	assert_false(dsv3_kv_disk_store(disk, &name, 1, secret, &full));
	assert_false(full);
	close_disk(disk);
	for (int i = 0; i < 2; i++)
	{
		assert_int_equal(stat(file(i ? "key" : "blocks"), &st), 0);
		assert_int_equal(st.st_mode & 0777, 0600);
	}
	disk = open_disk();
	assert_memory_equal(secret, dsv3_kv_disk_secret(disk), sizeof(secret));
	for (int i = 0; i < 3; i++)
		assert_int_equal(load(disk, i), 1);
	assert_int_equal(dsv3_kv_disk_counts(disk).records, 3);
	close_disk(disk);
}

/* The file never grows beyond its limit: the record used longest ago gives way, by the order of writing after a restart. */
static void
is_bounded(void **state)
{
	Dsv3KvDisk *disk = open_disk();
	struct stat st;

	(void) state;
	for (int i = 0; i < PLACES; i++)
		store(disk, i);
	assert_int_equal(load(disk, 0), 1);
	store(disk, 10);
	assert_int_equal(load(disk, 1), 0);
	assert_int_equal(load(disk, 0), 1);
	close_disk(disk);
	disk = open_disk();
	assert_int_equal(dsv3_kv_disk_counts(disk).records, PLACES);
	store(disk, 11);
	assert_int_equal(load(disk, 0), 0);
	for (int i = 2; i < PLACES; i++)
		assert_int_equal(load(disk, i), 1);
	assert_int_equal(load(disk, 10), 1);
	assert_int_equal(stat(file("blocks"), &st), 0);
	assert_true(st.st_size <= 4096 + PLACES * STRIDE);
	close_disk(disk);
}

static void
reset(void **state)
{
	Dsv3KvDisk *disk = open_disk();
	Dsv3BlockName name = name_of(0);
	Dsv3KvDiskEvent event;
	struct stat st;

	(void) state;
	store(disk, 0);
	store(disk, 1);
	dsv3_kv_disk_reset(disk);
	assert_false(dsv3_kv_disk_load(disk, &name));
	for (int ms = 0; ms < 5000 && dsv3_kv_disk_counts(disk).records > 0; ms++)
	{
		assert_false(dsv3_kv_disk_next(disk, &event));
		usleep(1000);
	}
	assert_int_equal(stat(file("blocks"), &st), 0);
	assert_int_equal(st.st_size, 4096);
	assert_int_equal(load(disk, 0), 0);
	store(disk, 2);
	close_disk(disk);
	disk = open_disk();
	assert_int_equal(load(disk, 1), 0);
	assert_int_equal(load(disk, 2), 1);
	close_disk(disk);
}

/* -- bad files -- */

static void
flip(const char *name, off_t at)
{
	int fd = open(file(name), O_RDWR);
	char byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

/* One bit anywhere: the record is not found or lost, its neighbours are not touched, and its place is used again. */
static void
flipped_bits(void **state)
{
	static const struct
	{
		off_t at;
		int first; /* what loading it gives: in the header it is not found, in the rows it is lost */
	} cases[] = {
		{0, 0}, {8, 0}, {16, 0}, {47, 0}, {48, 0}, {80, 0}, {111, 0}, {128, -1}, {128 + BLOCK_BYTES - 1, -1}};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		Dsv3KvDisk *disk = open_disk();

		for (int n = 0; n < 3; n++)
		{
			if (load(disk, n) == 0)
				store(disk, n);
		}
		close_disk(disk);
		/* Record 1 need not lie in place 1 every time: damage all and look that none is taken for good. */
		for (int place = 0; place < 3; place++)
			flip("blocks", 4096 + place * STRIDE + cases[i].at);
		disk = open_disk();
		for (int n = 0; n < 3; n++)
		{
			assert_int_equal(load(disk, n), cases[i].first);
			assert_int_equal(load(disk, n), 0);
		}
		assert_int_equal(dsv3_kv_disk_counts(disk).lost, cases[i].first ? 3 : 0);
		close_disk(disk);
	}
}

/* The same while the file is open, between writing and reading. */
static void
flipped_under_way(void **state)
{
	Dsv3KvDisk *disk = open_disk();

	(void) state;
	store(disk, 0);
	store(disk, 1);
	flip("blocks", 4096 + 300);
	assert_int_equal(load(disk, 0), -1);
	assert_int_equal(load(disk, 0), 0);
	assert_int_equal(load(disk, 1), 1);
	store(disk, 0);
	assert_int_equal(load(disk, 0), 1);
	close_disk(disk);
}

/* Cut anywhere, as by a crash: what is whole is found. */
static void
cut_short(void **state)
{
	static const off_t lengths[] = {4096 + 2 * STRIDE + 128 + BLOCK_BYTES,
									4096 + 2 * STRIDE + 128 + BLOCK_BYTES - 1,
									4096 + 2 * STRIDE + 100,
									4096 + STRIDE,
									4095,
									10,
									0};
	static const int whole[] = {3, 2, 2, 1, 0, 0, 0};

	(void) state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
	{
		Dsv3KvDisk *disk;

		(void) unlink(file("blocks"));
		disk = open_disk();
		for (int n = 0; n < 3; n++)
			store(disk, n);
		close_disk(disk);
		assert_int_equal(truncate(file("blocks"), lengths[i]), 0);
		disk = open_disk();
		for (int n = 0; n < 3; n++)
			assert_int_equal(load(disk, n) == 1, n < whole[i]);
		close_disk(disk);
	}
}

/* A file of another model, another size of block, another secret: nothing in it is found. */
static void
not_ours(void **state)
{
	Dsv3Error err;
	Dsv3KvDisk *disk;

	(void) state;
	for (int i = 0; i < 4; i++)
	{
		disk = open_disk();
		store(disk, 0);
		close_disk(disk);
		if (i == 2)
			flip("key", 5);
		if (i == 3)
			assert_int_equal(truncate(file("key"), 20), 0);
		disk = try_open(i == 0 ? "another" : "model", i == 1 ? BLOCK_BYTES - 1 : BLOCK_BYTES, &err);
		assert_non_null(disk);
		assert_int_equal(dsv3_kv_disk_counts(disk).records, 0);
		close_disk(disk);
		disk = open_disk();
		assert_int_equal(load(disk, 0), 0);
		close_disk(disk);
	}
}

static void
refuse(const char *sqlstate, const char *message)
{
	Dsv3Error err;

	memset(&err, 0, sizeof(err));
	assert_null(try_open("model", BLOCK_BYTES, &err));
	assert_string_equal(err.sqlstate, sqlstate);
	assert_non_null(strstr(err.message, message));
}

/* Open to others, somebody else's, in use, no place: refused. */
static void
refused_folders(void **state)
{
	Dsv3KvDisk *disk = open_disk();
	char kept[64];
	Dsv3Error err;
	Dsv3KvDiskOptions options = {
		.folder = "relative", .max_bytes = 1 << 20, .block_bytes = 100, .identity = ""};

	(void) state;
	refuse("55000", "in use by another engine");
	close_disk(disk);
	assert_int_equal(chmod(folder, 0750), 0);
	refuse("58030", "open to others");
	assert_int_equal(chmod(folder, 0700), 0);
	assert_int_equal(chmod(file("key"), 0644), 0);
	refuse("58030", "open to others");
	assert_int_equal(chmod(file("key"), 0600), 0);
	assert_int_equal(unlink(file("blocks")), 0);
	assert_int_equal(symlink("/dev/null", file("blocks")), 0);
	refuse("58030", "could not open");
	assert_int_equal(unlink(file("blocks")), 0);
	strcpy(kept, folder);
	strcpy(folder, "/tmp/dsv3-no-such-folder/within");
	refuse("58P01", "could not make");
	strcpy(folder, kept);
	assert_null(dsv3_kv_disk_open(&options, &err));
	assert_string_equal(err.sqlstate, "22023");
	options.folder = folder;
	options.max_bytes = 8000;
	assert_null(dsv3_kv_disk_open(&options, &err));
	assert_string_equal(err.sqlstate, "53400");
}

/* A disk that is full: blocks are not stored, nothing else happens, and when there is room again they are. */
static void
full_disk(void **state)
{
	Dsv3KvDisk *disk = open_disk();
	Dsv3BlockName name = name_of(1);
	struct rlimit before;
	struct rlimit limit;
	char rows[BLOCK_BYTES] = {0};
	bool full;

	(void) state;
	signal(SIGXFSZ, SIG_IGN);
	store(disk, 0);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit = before;
	limit.rlim_cur = 4096 + STRIDE + 500;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_true(dsv3_kv_disk_store(disk, &name, 1, rows, &full));
	assert_int_equal(wait_for(disk).type, DSV3_DISK_STORED);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(dsv3_kv_disk_counts(disk).unstored, 1);
	assert_int_equal(load(disk, 1), 0);
	assert_int_equal(load(disk, 0), 1);
	store(disk, 1);
	assert_int_equal(load(disk, 1), 1);
	close_disk(disk);
}

/* -- with a scheduler -- */

static void
ask_all(Rig *rig, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
	{
		Dsv3Request *request = any_request(i, i % 12 < 6 ? i % 12 : i);

		request->has_max_tokens = true;
		request->max_tokens = 1 + (uint32_t) (i * 13) % 90;
		set(&request->scope, i % 5 == 0 ? "a" : "b");
		submit(rig, request);
		if (i % 3 == 0)
			(void) dsv3_scheduler_step(rig->scheduler);
	}
	run(rig);
}

/* Let what waits to be written be written. */
static void
wait_for_stores(Rig *rig)
{
	int64_t stored = -1;

	for (int ms = 0; ms < 5000 && stat_of(rig, "kv_disk_stored") != stored; ms += 50)
	{
		stored = stat_of(rig, "kv_disk_stored");
		for (int i = 0; i < 10; i++)
		{
			usleep(5000);
			(void) dsv3_scheduler_step(rig->scheduler);
		}
	}
	assert_int_equal(stat_of(rig, "kv_blocks_used"), 0);
}

/* Answers of a first engine, of one that finds its rows on disk, and of one whose disk is damaged are those of one without. */
static void
check_restarts(const char *model, uint64_t n)
{
	Rig *plain = open_rig(model, 1000, 0, false);
	Rig *first = open_rig_with(model, 60, 0, false, folder);
	Rig *second;
	Rig *third;
	struct stat st;

	ask_all(plain, n);
	ask_all(first, n);
	wait_for_stores(first);
	assert_true(stat_of(first, "kv_disk_blocks_used") > 0);
	for (uint64_t i = 0; i < n; i++)
		expect_same(&plain->results[i], &first->results[i]);
	close_rig(first);

	second = open_rig_with(model, 60, 0, false, folder);
	ask_all(second, n);
	assert_true(stat_of(second, "kv_disk_loaded") > 0);
	for (uint64_t i = 0; i < n; i++)
		expect_same(&plain->results[i], &second->results[i]);
	wait_for_stores(second);
	close_rig(second);

	assert_int_equal(stat(file("blocks"), &st), 0);
	for (off_t at = 4096 + 128 + 8; at < st.st_size; at += 4096)
		flip("blocks", at);
	third = open_rig_with(model, 60, 0, false, folder);
	ask_all(third, n);
	assert_true(stat_of(third, "kv_disk_damaged") > 0);
	for (uint64_t i = 0; i < n; i++)
		expect_same(&plain->results[i], &third->results[i]);
	wait_for_stores(third);
	close_rig(third);
	close_rig(plain);
}

static void
restarts(void **state)
{
	(void) state;
	check_restarts("test:context=1024", 150);
}

/* Rows of one type are nothing to an engine that keeps them in another: they are not there, not even where they would have the
 * same size. */
static void
row_types(void **state)
{
	Rig *rig;

	(void) state;
	for (Dsv3KvType type = DSV3_KV_F32; type <= DSV3_KV_INT8; type++)
	{
		rig_options.kv = type;
		rig = open_rig_with("test:context=1024", 60, 0, false, folder);
		assert_int_equal(stat_of(rig, "kv_disk_blocks_used"), 0);
		ask_all(rig, 60);
		assert_int_equal(stat_of(rig, "kv_disk_loaded"), 0);
		wait_for_stores(rig);
		assert_true(stat_of(rig, "kv_disk_blocks_used") > 0);
		close_rig(rig);
	}
	rig = open_rig_with("test:context=1024", 60, 0, false, folder);
	ask_all(rig, 60);
	assert_true(stat_of(rig, "kv_disk_loaded") > 0);
	wait_for_stores(rig);
	close_rig(rig);
	rig_options.kv = DSV3_KV_F32;
}

static void
checkpoint_restarts(void **state)
{
	(void) state;
	if (access("build/tiny-model/config.json", R_OK) != 0)
	{
		assert_null(getenv("CI"));
		print_message("no build/tiny-model: make tiny-model\n");
		skip();
	}
	check_restarts("build/tiny-model", 60);
}

/* A prompt that was asked twice is on disk and found by the next engine, and counted. */
static void
cached_tokens_of_a_restart(void **state)
{
	static const char prompt[] =
		"01234567890123456789012345678901234567890123456789012345678901234567890123456789";

	(void) state;
	for (int engine = 0; engine < 2; engine++)
	{
		Rig *rig = open_rig_with("test:", 64, 0, false, folder);

		for (uint64_t id = 1; id <= 2; id++)
		{
			Dsv3Request *request = generate(id, prompt);

			set(&request->scope, "s");
			request->has_max_tokens = true;
			request->max_tokens = 2;
			submit(rig, request);
			run(rig);
		}
		assert_int_equal(rig->results[1].cached_tokens, engine == 0 ? 0 : 64);
		assert_int_equal(rig->results[2].cached_tokens, 64);
		assert_int_equal(stat_of(rig, "kv_disk_loaded"), engine == 0 ? 0 : 2);
		wait_for_stores(rig);
		assert_int_equal(stat_of(rig, "kv_disk_stored"), engine == 0 ? 2 : 0);
		close_rig(rig);
	}
}

/* A folder that cannot be used is no reason to have no answers. */
static void
without_the_folder(void **state)
{
	Rig *rig = open_rig_with("test:", 64, 0, false, "/proc/no-such-folder");

	(void) state;
	ask(rig, generate(1, "x"), "X");
	assert_int_equal(stat_of(rig, "kv_disk_blocks"), 0);
	close_rig(rig);
}

#define DISK_TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(survives_restart),
		DISK_TEST(is_bounded),
		DISK_TEST(reset),
		DISK_TEST(flipped_bits),
		DISK_TEST(flipped_under_way),
		DISK_TEST(cut_short),
		DISK_TEST(not_ours),
		DISK_TEST(refused_folders),
		DISK_TEST(full_disk),
		DISK_TEST(restarts),
		DISK_TEST(row_types),
		DISK_TEST(checkpoint_restarts),
		DISK_TEST(cached_tokens_of_a_restart),
		cmocka_unit_test(without_the_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
