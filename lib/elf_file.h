/* ELF files that are cut off: the system's loader does not look, and the process ends with a bus error where it
 * reads on. */
#ifndef FH_ELF_FILE_H
#define FH_ELF_FILE_H

#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that the file's program headers speak of, 0 where it is no ELF file of this machine: the loader then says
 * what it is. */
static inline uint64_t fh_elf_needs(int descriptor) {
  ElfW(Ehdr) head;
  ElfW(Phdr) part;
  if (pread(descriptor, &head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) || head.e_phentsize != sizeof part)
    return 0;
  uint64_t needs = head.e_phoff + (uint64_t)head.e_phnum * sizeof part;
  for (int i = 0; i < head.e_phnum; i++) {
    if (pread(descriptor, &part, sizeof part, (off_t)(head.e_phoff + (uint64_t)i * sizeof part)) !=
        (ssize_t)sizeof part)
      break;
    if (part.p_type == PT_LOAD && part.p_offset + part.p_filesz > needs) needs = part.p_offset + part.p_filesz;
  }
  return needs;
}

/* Whether the file at path is a library cut off, with a line that says so in text. */
static inline int fh_elf_is_cut(const char *path, char *text, size_t text_bytes) {
  struct stat status = {0};
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  const uint64_t needs = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) ? fh_elf_needs(descriptor) : 0;
  close(descriptor);
  if (needs <= (uint64_t)status.st_size) return 0;
  snprintf(text, text_bytes, "%s: cut off, with %" PRIu64 " of %" PRIu64 " bytes", path, (uint64_t)status.st_size,
           needs);
  return 1;
}

#endif /* FH_ELF_FILE_H */
