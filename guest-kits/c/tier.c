// SPDX-License-Identifier: MIT OR Apache-2.0
/* The functions of palimpsest_tier.h: an open file of /dev/palimpsest keeps what was asked for (abi/include/palimpsest.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "palimpsest.h"
#include "palimpsest_tier.h"

int palimpsest_tier_set(int tier, unsigned int per_mille)
{
	struct palimpsest_kit_target target = { .per_mille = per_mille };

	return ioctl(tier, PALIMPSEST_KIT_TARGET, &target) ? -errno : 0;
}

int palimpsest_tier_open(unsigned int per_mille)
{
	int tier = open(PALIMPSEST_KIT_PATH, O_RDWR | O_CLOEXEC), error;

	if (tier < 0)
		return -errno;
	error = palimpsest_tier_set(tier, per_mille);
	if (!error)
		return tier;
	close(tier);
	return error;
}

void palimpsest_tier_close(int tier)
{
	if (tier >= 0)
		close(tier);
}
