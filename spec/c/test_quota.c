/* The CPU quota of control groups, read from trees of files: version 1, version 2, nested, both at once, none,
 * damage. */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "cpu/cpu_quota.h"

static char root[] = "/tmp/fewhead_quota_XXXXXX";

/* Writes root/path, its folders too. */
static void put(const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  for (char *slash = full + sizeof root; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    CHECK(mkdir(full, 0755) == 0 || errno == EEXIST);
    *slash = '/';
  }
  FILE *file = fopen(full, "w");
  if (!CHECK(file != NULL)) return;
  fputs(text, file);
  fclose(file);
}

static void clear(void) {
  char command[600];
  snprintf(command, sizeof command, "rm -rf %s/*", root);
  CHECK_INT(system(command), 0);
}

typedef struct file {
  const char *path, *text;
} file;
typedef struct tree {
  const char *name;
  int32_t cpus;
  file files[6];
} tree;

#define SELF "/proc/self/cgroup"
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/cpu,cpuacct"
#define V1_SELF "12:pids:/a\n4:cpu,cpuacct:/a/b\n3:cpuset:/\n1:name=systemd:/a\n"

static const tree trees[] = {
    {"nothing there", 0, {{"/x", ""}}},
    {"v2, no limit", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", "max 100000\n"}}},
    {"v2, a container's own top", 2, {{SELF, "0::/\n"}, {V2 "/cpu.max", "150000 100000\n"}}},
    {"v2, half a CPU is one thread", 1, {{SELF, "0::/\n"}, {V2 "/cpu.max", "50000 100000\n"}}},
    {"v2, whole CPUs are not rounded up", 3, {{SELF, "0::/\n"}, {V2 "/cpu.max", "300000 100000\n"}}},
    {"v2, another period", 4, {{SELF, "0::/\n"}, {V2 "/cpu.max", "40000 10000\n"}}},
    {"v2, nested: the process's own group",
     1,
     {{SELF, "0::/a/b\n"}, {V2 "/a/b/cpu.max", "50000 100000\n"}, {V2 "/a/cpu.max", "max 100000\n"}}},
    {"v2, nested: a group above",
     2,
     {{SELF, "0::/a/b/c\n"}, {V2 "/a/b/c/cpu.max", "max 100000\n"}, {V2 "/a/cpu.max", "200000 100000\n"}}},
    {"v2, nested: the smallest wins",
     2,
     {{SELF, "0::/a/b\n"},
      {V2 "/a/b/cpu.max", "800000 100000\n"},
      {V2 "/a/cpu.max", "200000 100000\n"},
      {V2 "/cpu.max", "400000 100000\n"}}},
    {"v2, a group beside it does not count", 0, {{SELF, "0::/a\n"}, {V2 "/b/cpu.max", "50000 100000\n"}}},
    {"v2, the path of the machine, the mount of the container",
     2,
     {{SELF, "0::/system.slice/docker-1.scope\n"}, {V2 "/cpu.max", "200000 100000\n"}}},
    {"v2, outside of the namespace", 2, {{SELF, "0::/../../a\n"}, {V2 "/cpu.max", "200000 100000\n"}}},
    {"v2, no /proc", 2, {{V2 "/cpu.max", "200000 100000\n"}}},
    {"v1", 1, {{SELF, V1_SELF}, {V1 "/a/b/cpu.cfs_quota_us", "50000\n"}, {V1 "/a/b/cpu.cfs_period_us", "100000\n"}}},
    {"v1, no limit",
     0,
     {{SELF, V1_SELF}, {V1 "/a/b/cpu.cfs_quota_us", "-1\n"}, {V1 "/a/b/cpu.cfs_period_us", "100000\n"}}},
    {"v1, a group above",
     3,
     {{SELF, V1_SELF},
      {V1 "/a/b/cpu.cfs_quota_us", "-1\n"},
      {V1 "/a/b/cpu.cfs_period_us", "100000\n"},
      {V1 "/a/cpu.cfs_quota_us", "250000\n"},
      {V1 "/a/cpu.cfs_period_us", "100000\n"}}},
    {"v1, the mount of the container",
     2,
     {{SELF, "4:cpu,cpuacct:/docker/1\n"},
      {V1 "/cpu.cfs_quota_us", "200000\n"},
      {V1 "/cpu.cfs_period_us", "100000\n"}}},
    {"v1, mounted as cpu",
     2,
     {{SELF, "4:cpu:/a\n"}, {V2 "/cpu/a/cpu.cfs_quota_us", "200000\n"}, {V2 "/cpu/a/cpu.cfs_period_us", "100000\n"}}},
    {"v1, cpuset is another controller",
     0,
     {{SELF, "3:cpuset:/a\n2:cpuacct:/a\n"},
      {V1 "/a/cpu.cfs_quota_us", "50000\n"},
      {V1 "/a/cpu.cfs_period_us", "100000\n"}}},
    {"both: CPU time under v1",
     1,
     {{SELF, "4:cpu,cpuacct:/a\n0::/a\n"},
      {V1 "/a/cpu.cfs_quota_us", "100000\n"},
      {V1 "/a/cpu.cfs_period_us", "100000\n"},
      {V2 "/unified/a/cgroup.procs", "1\n"}}},
    {"both: the smaller",
     2,
     {{SELF, "4:cpu,cpuacct:/a\n0::/a\n"},
      {V1 "/a/cpu.cfs_quota_us", "900000\n"},
      {V1 "/a/cpu.cfs_period_us", "100000\n"},
      {V2 "/unified/a/cpu.max", "200000 100000\n"}}},
    {"damage: words", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", "garbage\n"}}},
    {"damage: one number", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", "100000\n"}}},
    {"damage: empty", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", ""}}},
    {"damage: zero", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", "0 0\n"}}},
    {"damage: below zero", 0, {{SELF, "0::/\n"}, {V2 "/cpu.max", "-100000 100000\n"}}},
    {"damage: the list of groups", 0, {{SELF, "\n0:\nabc\n::::\n"}, {V2 "/a/cpu.max", "100000 100000\n"}}},
    {"a quota beyond any machine", 1 << 20, {{SELF, "0::/\n"}, {V2 "/cpu.max", "9223372036854775807 1\n"}}},
};

int main(void) {
  if (!CHECK(mkdtemp(root) != NULL)) return check_summary();
  for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
    for (const file *f = trees[i].files; f < trees[i].files + 6 && f->path; f++) put(f->path, f->text);
    const int32_t cpus = fh_quota_cpus(root);
    CHECK_INT(cpus, trees[i].cpus);
    if (cpus != trees[i].cpus) printf("    tree: %s\n", trees[i].name);
    clear();
  }
  CHECK(fh_quota_cpus("") >= 0);
  CHECK_INT(rmdir(root), 0);
  return check_summary();
}
