// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Tests of the library: objects of random sizes and alignments against a model that knows what each of them holds, threads, limits,
 * what comes back when, and wrong calls. `make check` runs it, on any machine: without the device memory is plain, from the same
 * allocator. In a guest it runs on the device.
 *
 *   test [SEED [STEPS]]     STEPS of the model in each run
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "palimpsest_region.h"
#include "palimpsest_tier.h"

#define OBJECTS 400
#define THREADS 4
/* Of an arena, in pages. */
#define ARENA 64

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

static void fail(int line, const char *condition)
{
	fprintf(stderr, "test.c:%d: %s (errno %d)\n", line, condition, errno);
	exit(1);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* An object of the model. */
struct object {
	unsigned char *at;
	size_t size, alignment;
	unsigned char mark;
};

struct run {
	struct palimpsest_region *region;
	uint64_t random;
	/* Objects are larger on some runs. */
	int bits;
};

static long steps = 60000;

/* Sizes of all magnitudes, and often at the edge of one. */
static size_t random_size(struct run *run)
{
	size_t top = (size_t)1 << next_random(&run->random) % run->bits;

	return next_random(&run->random) % 4 ? next_random(&run->random) % (2 * top) : top + next_random(&run->random) % 3 - 1;
}

/* Another object's bytes in this one, or free memory's, show here. */
static void check_marks(const struct object *object, size_t size)
{
	for (size_t n = 0; n < size; n++)
		CHECK(object->at[n] == object->mark);
}

static void check_apart(const struct object *objects, const struct object *new)
{
	for (const struct object *other = objects; other < objects + OBJECTS; other++)
		if (other != new && other->at)
			CHECK(new->at + new->size <= other->at || other->at + other->size <= new->at);
}

static void make(struct run *run, struct object *object)
{
	object->size = random_size(run);
	object->alignment = next_random(&run->random) % 3 ? 16 : (size_t)1 << next_random(&run->random) % 17;
	object->mark = next_random(&run->random);
	if (object->alignment == 16)
		object->at = palimpsest_region_malloc(run->region, object->size);
	else
		object->at = palimpsest_region_aligned_alloc(run->region, object->alignment, object->size);
	CHECK(object->at);
	CHECK((uintptr_t)object->at % object->alignment == 0);
}

static void resize(struct run *run, struct object *object)
{
	size_t before = object->size;

	object->size = random_size(run);
	object->at = palimpsest_region_realloc(run->region, object->at, object->size);
	CHECK(object->at && (uintptr_t)object->at % 16 == 0);
	check_marks(object, before < object->size ? before : object->size);
}

static void *random_run(void *argument)
{
	struct run *run = argument;
	struct object *objects = calloc(OBJECTS, sizeof(*objects));

	CHECK(objects);
	for (long step = 0; step < steps; step++) {
		struct object *object = &objects[next_random(&run->random) % OBJECTS];

		if (!object->at) {
			make(run, object);
		} else if (next_random(&run->random) % 4 == 0) {
			resize(run, object);
		} else {
			check_marks(object, object->size);
			palimpsest_region_free(run->region, object->at);
			object->at = NULL;
			continue;
		}
		check_apart(objects, object);
		memset(object->at, object->mark, object->size);
	}
	for (struct object *object = objects; object < objects + OBJECTS; object++)
		if (object->at) {
			check_marks(object, object->size);
			palimpsest_region_free(run->region, object->at);
		}
	free(objects);
	return NULL;
}

static struct palimpsest_region *create(void)
{
	struct palimpsest_region *region;
	int answer = palimpsest_region_create(&region);

	CHECK(answer == PALIMPSEST_REGION_MADE || answer == PALIMPSEST_REGION_PLAIN);
	CHECK((palimpsest_region_number(region) != 0) == (answer == PALIMPSEST_REGION_MADE));
	CHECK((palimpsest_region_reason(region) != 0) == (answer == PALIMPSEST_REGION_PLAIN));
	return region;
}

/* All is given back: one empty arena at most, and none after a trim. */
static void check_empty(struct palimpsest_region *region)
{
	CHECK(palimpsest_region_frames(region) <= ARENA);
	palimpsest_region_trim(region);
	CHECK(palimpsest_region_frames(region) == 0);
}

static void against_the_model(uint64_t seed)
{
	struct run run = { create(), seed, 13 };

	random_run(&run);
	check_empty(run.region);
	run.bits = 18;
	random_run(&run);
	check_empty(run.region);
	palimpsest_region_destroy(run.region);
}

static void several_threads(uint64_t seed)
{
	struct palimpsest_region *region = create();
	struct run runs[THREADS];
	pthread_t threads[THREADS];

	for (int n = 0; n < THREADS; n++) {
		runs[n] = (struct run){ region, seed + 2 * n + 1, 12 };
		CHECK(!pthread_create(&threads[n], NULL, random_run, &runs[n]));
	}
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	check_empty(region);
	palimpsest_region_destroy(region);
}

/* Small objects fill pages without gaps, and an arena comes after 63 pages. */
static void density(void)
{
	struct palimpsest_region *region = create();
	size_t count = 63 * (4096 / 64);
	void **objects = malloc((count + 1) * sizeof(*objects));

	CHECK(objects);
	for (size_t n = 0; n < count; n++)
		objects[n] = palimpsest_region_malloc(region, 64);
	CHECK(palimpsest_region_frames(region) == ARENA);
	objects[count] = palimpsest_region_malloc(region, 64);
	CHECK(palimpsest_region_frames(region) == 2 * ARENA);
	for (size_t n = 0; n <= count; n++)
		palimpsest_region_free(region, objects[n]);
	check_empty(region);
	/* A large object has a page for its records. */
	objects[0] = palimpsest_region_malloc(region, 40 * 4096);
	CHECK(palimpsest_region_frames(region) == 41);
	free(objects);
	/* And ends with the region. */
	palimpsest_region_destroy(region);
}

static void limits(void)
{
	struct palimpsest_region *region = create();
	void *object = palimpsest_region_malloc(region, 0), *other = palimpsest_region_malloc(region, 0);
	unsigned char *zeroed;

	CHECK(object && other && object != other);
	memset(object, 0xff, 1);
	palimpsest_region_free(region, object);
	zeroed = palimpsest_region_calloc(region, 3, 5);
	for (int n = 0; n < 15; n++)
		CHECK(zeroed[n] == 0);
	palimpsest_region_free(region, NULL);
	CHECK(!palimpsest_region_aligned_alloc(region, 0, 8) && errno == EINVAL);
	CHECK(!palimpsest_region_aligned_alloc(region, 48, 8) && errno == EINVAL);
	CHECK(!palimpsest_region_aligned_alloc(region, 2 * PALIMPSEST_REGION_ALIGNMENT_MAX, 8) && errno == EINVAL);
	CHECK(!palimpsest_region_malloc(region, SIZE_MAX) && errno == ENOMEM);
	CHECK(!palimpsest_region_malloc(region, SIZE_MAX / 2 - 4096) && errno == ENOMEM);
	CHECK(!palimpsest_region_calloc(region, SIZE_MAX / 2, 3) && errno == ENOMEM);
	CHECK(!palimpsest_region_realloc(region, other, SIZE_MAX) && errno == ENOMEM);
	/* More than there can be: the errno is the kernel's or the kit's. */
	CHECK(!palimpsest_region_malloc(region, (size_t)1 << 50) && (errno == ENOMEM || errno == EDQUOT));
	palimpsest_region_free(region, other);
	palimpsest_region_free(region, zeroed);
	check_empty(region);
	palimpsest_region_destroy(region);
	palimpsest_region_destroy(NULL);
}

/* With or without a kit and fast memory: a target is kept, or refused with a reason that the header has. */
static void targets(void)
{
	int tier = palimpsest_tier_open(PALIMPSEST_TIER_ALL);

	if (tier < 0) {
		CHECK(tier == -ENOENT || tier == -EACCES || tier == -ENODEV || tier == -EOPNOTSUPP);
	} else {
		CHECK(palimpsest_tier_set(tier, 1) == 0 && palimpsest_tier_set(tier, 0) == 0);
		CHECK(palimpsest_tier_set(tier, PALIMPSEST_TIER_ALL + 1) == -EINVAL);
		CHECK(palimpsest_tier_open(PALIMPSEST_TIER_ALL + 1) == -EINVAL);
	}
	palimpsest_tier_close(tier);
	CHECK(palimpsest_tier_set(-1, 1) == -EBADF);
}

static void free_twice(void)
{
	struct palimpsest_region *region = create();
	void *object = palimpsest_region_malloc(region, 100);

	/* Another one keeps the page. */
	palimpsest_region_malloc(region, 100);
	palimpsest_region_free(region, object);
	palimpsest_region_free(region, object);
}

static void free_the_middle(void)
{
	struct palimpsest_region *region = create();

	palimpsest_region_free(region, (char *)palimpsest_region_malloc(region, 5000) + 16);
}

static void free_in_another_region(void)
{
	struct palimpsest_region *region = create(), *other = create();

	palimpsest_region_free(other, palimpsest_region_malloc(region, 300000));
}

/* A wrong call ends the program by abort. */
static void aborts(void (*call)(void))
{
	int status;
	pid_t child = fork();

	if (!child) {
		/* Without its message. */
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		call();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(int count, char **words)
{
	uint64_t seed = count > 1 ? strtoull(words[1], NULL, 0) | 1 : 88172645463325252u;

	if (count > 2)
		steps = strtol(words[2], NULL, 0);
	against_the_model(seed);
	several_threads(seed);
	density();
	limits();
	targets();
	aborts(free_twice);
	aborts(free_the_middle);
	aborts(free_in_another_region);
	puts("ok");
	return 0;
}
