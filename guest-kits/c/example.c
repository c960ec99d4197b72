// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Two lists, each in a region of its own: what is walked together is in the same frames. `make` builds it; docs/sdk.md has more.
 *
 *   example [NODES [wait]]     with `wait` the regions stay until the end of standard input
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "palimpsest_region.h"

struct node {
	struct node *next;
	long value;
	char text[80];
};

static struct node *build(struct palimpsest_region *region, long nodes)
{
	struct node *list = NULL;

	for (long n = 0; n < nodes; n++) {
		struct node *node = palimpsest_region_malloc(region, sizeof(*node));

		if (!node) {
			perror("palimpsest_region_malloc");
			exit(1);
		}
		*node = (struct node){ .next = list, .value = n };
		list = node;
	}
	return list;
}

static long sum(const struct node *list)
{
	long total = 0;

	for (; list; list = list->next)
		total += list->value;
	return total;
}

int main(int count, char **words)
{
	long nodes = count > 1 ? atol(words[1]) : 10000;
	struct palimpsest_region *regions[2];

	for (int n = 0; n < 2; n++) {
		int answer = palimpsest_region_create(&regions[n]);

		if (answer < 0)
			return 1;
		if (answer == PALIMPSEST_REGION_PLAIN)
			printf("plain memory: %s\n", strerror(palimpsest_region_reason(regions[n])));
	}
	for (int n = 0; n < 2; n++) {
		struct node *list = build(regions[n], nodes << n);

		printf("region %u frames %zu sum %ld\n", palimpsest_region_number(regions[n]),
		       palimpsest_region_frames(regions[n]), sum(list));
	}
	fflush(stdout);
	if (count > 2 && !strcmp(words[2], "wait"))
		while (getchar() != EOF)
			;
	for (int n = 0; n < 2; n++)
		palimpsest_region_destroy(regions[n]);
	return 0;
}
