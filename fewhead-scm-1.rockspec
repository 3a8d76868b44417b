rockspec_format = "3.0"
package = "fewhead"
version = "scm-1"
source = { url = "git+file://." }
description = {
  summary = "When does it pay to stop padding heads in sparse MLA prefill, and with which kernel?",
  detailed = [[
A C library with CPU kernels behind one call (padded, gather and packed heads, and a double-accumulation reference), driven from
LuaJIT: cases, parity, interleaved timing, sweeps, and the gate that a serving engine can load.]],
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = { "lua >= 5.1, < 5.2", "lua-cjson >= 2.1" }
test_dependencies = { "busted >= 2.0" }
build = {
  type = "make",
  build_target = "lib",
  install_target = "install-lua",
  install_variables = {
    LUADIR = "$(LUADIR)", LIBDIR = "$(LIBDIR)", BINDIR = "$(BINDIR)", SHIPPED = "$(LUADIR)/fewhead/shipped",
  },
}
test = { type = "command", command = "make test" }
