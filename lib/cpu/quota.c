/* The CPU quota of a process's control groups, version 1 and 2. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cpu_quota.h"

enum { MOST = 1 << 20 }; /* CPUs; a larger quota limits no machine */

/* Where systems mount the hierarchies: version 2 alone or beside version 1, and version 1's CPU controller by its
 * names. */
static const char *const v2_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
static const char *const v1_mounts[] = {"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu",
                                        "/sys/fs/cgroup/cpu"};

/* Reads up to two numbers of a file's first line. Returns how many there are; 0 too for "max" and for a file that is
 * not there. */
static int numbers_of(const char *root, const char *folder, const char *group, const char *name, long long value[2]) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s%s%s/%s", root, folder, group, name);
  FILE *file = length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
  if (!file) return 0;
  const int found = fscanf(file, "%lld %lld", &value[0], &value[1]);
  fclose(file);
  return found > 0 ? found : 0;
}

/* Returns the smaller of `least` (0: no limit) and the CPUs that `quota` microseconds of each period are worth. */
static int32_t smaller(int32_t least, long long quota, long long period) {
  if (quota <= 0 || period <= 0) return least; /* version 1 writes -1 for no limit */
  const long long cpus = (quota - 1) / period + 1;
  const int32_t here = cpus < MOST ? (int32_t)cpus : MOST;
  return least && least < here ? least : here;
}

static int32_t v2_quota(const char *root, const char *mount, const char *group, int32_t least) {
  long long value[2];
  return numbers_of(root, mount, group, "cpu.max", value) == 2 ? smaller(least, value[0], value[1]) : least;
}

static int32_t v1_quota(const char *root, const char *mount, const char *group, int32_t least) {
  long long quota[2], period[2];
  if (numbers_of(root, mount, group, "cpu.cfs_quota_us", quota) < 1) return least;
  return numbers_of(root, mount, group, "cpu.cfs_period_us", period) < 1 ? least : smaller(least, quota[0], period[0]);
}

/* In a container the mount's top may be the container's own group, while the path is the path on the machine. Groups
 * that the mount lacks have no files, and the walk ends at the top. A path with ".." leads outside the mount, so
 * only the top is read. The walk shortens `group`. */
static int32_t walk(const char *root, const char *mount, char *group, int32_t least,
                    int32_t (*quota_of)(const char *root, const char *mount, const char *group, int32_t least)) {
  if (strstr(group, "/..")) *group = 0;
  for (size_t length = strlen(group); length && group[length - 1] == '/'; length--) group[length - 1] = 0;
  for (;;) {
    least = quota_of(root, mount, group, least);
    char *slash = strrchr(group, '/');
    if (!slash) return least;
    *slash = 0;
  }
}

/* Whether a list such as "cpu,cpuacct" names the CPU controller. */
static int has_cpu(const char *controllers) {
  for (const char *at = controllers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, "cpu", 3) == 0 && (at[3] == 0 || at[3] == ',')) return 1;
  return 0;
}

static int32_t walk_all(const char *root, const char *const *mounts, size_t count, const char *group, int32_t least,
                        int32_t (*quota_of)(const char *root, const char *mount, const char *group, int32_t least)) {
  for (size_t i = 0; i < count; i++) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", group);
    least = walk(root, mounts[i], copy, least, quota_of);
  }
  return least;
}

int32_t fh_quota_cpus(const char *root) {
  char line[PATH_MAX + 256];
  int32_t least = 0;
  snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
  FILE *file = fopen(line, "re");
  /* Without this file the tops of the mounts are still read. */
  if (!file) {
    least = walk_all(root, v2_mounts, sizeof v2_mounts / sizeof *v2_mounts, "", least, v2_quota);
    return walk_all(root, v1_mounts, sizeof v1_mounts / sizeof *v1_mounts, "", least, v1_quota);
  }
  /* Lines are "number:controllers:/group"; version 2 has number 0 and no controllers. */
  while (fgets(line, sizeof line, file)) {
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *controllers++ = 0;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (strcmp(line, "0") == 0 && !*controllers)
      least = walk_all(root, v2_mounts, sizeof v2_mounts / sizeof *v2_mounts, group, least, v2_quota);
    else if (has_cpu(controllers))
      least = walk_all(root, v1_mounts, sizeof v1_mounts / sizeof *v1_mounts, group, least, v1_quota);
  }
  fclose(file);
  return least;
}
