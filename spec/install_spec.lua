local helper = require "spec.helper"
local plugin = require "spec.plugin"
local process = require "spec.process"

-- Runs a shell text that must succeed; returns its standard output.
local function sh(text, options)
  local status, out, err = process.run(text, options)
  assert(status == 0, ("%s: status %s\n%s%s"):format(text, status, out, err))
  return out
end

-- As the library here was built, so that nothing is built again.
local F = require "fewhead.base.ffi"
local MAKE = F.ffi.string(F.C.fh_build_info()):find("without CUDA", 1, true) and "CUDA=0 make" or "make"

-- Installs from a copy of this checkout that is gone afterwards, so that nothing can come from it.
local function install(folder, prefix, destdir)
  local from = helper.quoted(folder .. "checkout")
  sh(("mkdir %s && cp -pR Makefile fewhead fewhead.pc.in lib kernels peers lua experiments results build %s"):format(from, from))
  local said = sh(("%s -s -C %s install PREFIX=%s DESTDIR=%s"):format(MAKE, from, helper.quoted(prefix),
    helper.quoted(destdir or "")))
  return from, said
end

describe("make install", function()
  local folder, prefix, said
  lazy_setup(function()
    folder = helper.folder()
    prefix = folder .. "prefix"
    said = select(2, install(folder, prefix))
    process.remove(folder .. "checkout")
    for _, file in ipairs { "site/vllm/_flashmla_C.abi3.so", "site/torch/lib/libtorch_cpu.so" } do
      sh(("mkdir -p %s"):format(helper.quoted(folder .. file:match("^.*/"))))
      process.write(folder .. file, "")
    end
  end)
  lazy_teardown(function() process.remove(folder) end)

  it("gives a command that works in any folder without the checkout", function()
    local out = sh(prefix .. "/bin/fewhead info", { cwd = "/", env = { FEWHEAD_LIB = false } })
    assert.is_truthy(out:find(("\nlibrary     %s/lib/libfewhead.so\n"):format(prefix), 1, true), out)
    assert.matches("^usage: fewhead run experiments/gate_sweep.lua",
      sh(prefix .. "/bin/fewhead run experiments/gate_sweep.lua --help", { cwd = "/" }))
    assert.equal("true\n", sh(prefix .. "/bin/fewhead repl", { cwd = "/", stdin = "fh.gate.new():native(8, 2048)" }))
  end)

  it("gives the plug-in for FlashMLA beside the library, where it is looked for", function()
    local out = sh("luajit -e 'print(require(\"fewhead.device.flashmla\").find().path)'", { cwd = "/", env = {
      LUA_PATH = prefix .. "/share/lua/5.1/?.lua;;", FEWHEAD_LIB = false, FEWHEAD_FLASHMLA = folder .. "site" } })
    assert.equal(prefix .. "/lib/libfewhead_flashmla.so\n", out)
    sh("test -f " .. helper.quoted(prefix .. "/lib/libfewhead_flashmla.so"))
  end)

  it("brings the evidence that predictions for other machines are made from", function()
    local out = sh(prefix .. "/bin/fewhead run experiments/overlap.lua --pattern window --s-q 64 --on nvidia-h200", { cwd = "/" })
    assert.matches("\nus: expected on NVIDIA H200, costs fitted to [^\n]+/fewhead/results/nvidia%-h200/packed%.jsonl ", out)
  end)

  it("gives Lua modules that plain luajit loads", function()
    local out = sh("luajit -e 'io.write(require(\"fewhead\").open(\"cpu\").name)'", { cwd = "/",
      env = { LUA_PATH = prefix .. "/share/lua/5.1/?.lua;" .. prefix .. "/share/lua/5.1/?/init.lua;;" } })
    assert.equal("cpu", out)
  end)

  it("ends with what a C program needs", function()
    assert.is_truthy(said:find(("fewhead: installed below %s; a C program: cc program.c $(pkg-config --cflags --libs fewhead)\n"
      .. "fewhead: pkg-config does not look there: export PKG_CONFIG_PATH=%s/lib/pkgconfig\n"):format(prefix, prefix), 1, true),
      said)
  end)

  it("puts the completion where bash looks", function()
    local status, out = process.run { "./fewhead", "completion", "bash" }
    assert.equal(0, status)
    assert.equal(out, process.read(prefix .. "/share/bash-completion/completions/fewhead"))
  end)

  it("gives header, library and pkg-config file: the C program of docs/api.md compiles, links and runs", function()
    local program = process.read(process.root .. "/docs/api.md"):match("```c\n(.-)```")
    process.write(folder .. "program.c", program)
    local env = { PKG_CONFIG_PATH = prefix .. "/lib/pkgconfig" }
    assert.equal(require("fewhead").VERSION .. "\n", sh("pkg-config --modversion fewhead", { env = env }))
    sh("cc -std=c11 -Wall -Wextra -Werror -o program program.c $(pkg-config --cflags --libs fewhead)",
      { cwd = folder, env = env })
    assert.equal("out[0] = 0x3f80\n", sh("./program", { cwd = folder }))
  end)

  it("gives the header for plug-ins: its example builds against the installation and races there", function()
    process.write(folder .. "loops.c", plugin.source())
    sh("cc -std=c11 -Wall -Wextra -Werror -shared -fPIC -O2 -o loops.so loops.c $(pkg-config --cflags fewhead) -lm",
      { cwd = folder, env = { PKG_CONFIG_PATH = prefix .. "/lib/pkgconfig" } })
    local out = sh(prefix .. "/bin/fewhead run experiments/layouts.lua --provider loops=loops.so --s-q 2 --seconds 0 "
      .. "--layout vllm", { cwd = folder, env = { FEWHEAD_LIB = false, FEWHEAD_DEVICE = "cpu" } })
    assert.matches("\ns_q +padded +gather +packed +loops +.-\n +2 +.- pass ", out)
  end)

  it("goes into folders with spaces in their names", function()
    local spaced = folder .. "a prefix"
    install(folder, spaced)
    process.remove(folder .. "checkout")
    local version = sh(helper.quoted(spaced .. "/bin/fewhead") .. " --version", { cwd = "/", env = { FEWHEAD_LIB = false } })
    assert.matches("^fewhead ", version)
    process.write(folder .. "spaced.c", "#include <fewhead.h>\nint main(void) { return fh_version() != FH_VERSION; }\n")
    sh("eval cc -o spaced spaced.c $(pkg-config --cflags --libs fewhead) && ./spaced",
      { cwd = folder, env = { PKG_CONFIG_PATH = spaced .. "/lib/pkgconfig" } })
  end)

  it("stages below DESTDIR what PREFIX names, and uninstall takes all of it away", function()
    local stage = folder .. "stage"
    local from = install(folder, "/opt/fewhead", stage)
    assert.matches("^prefix=/opt/fewhead\n", process.read(stage .. "/opt/fewhead/lib/pkgconfig/fewhead.pc"))
    assert.matches("\nlibrary     [^\n]*/stage/opt/fewhead/lib/libfewhead%.so\n", sh(stage .. "/opt/fewhead/bin/fewhead info"))
    sh(("make -s -C %s uninstall PREFIX=/opt/fewhead DESTDIR=%s"):format(from, helper.quoted(stage)))
    assert.equal("", sh(("find %s ! -type d"):format(helper.quoted(stage))))
  end)
end)

describe("The rockspec", function()
  local function has_luarocks() return select(2, helper.shell("command -v luarocks")) == 0 end

  it("passes luarocks lint", function()
    if not has_luarocks() then return pending("not run: luarocks is not installed") end
    sh "luarocks lint fewhead-scm-1.rockspec"
  end)

  it("installs the command, the modules, the library and experiments that run", function()
    if not has_luarocks() then return pending("not run: luarocks is not installed") end
    local folder = helper.folder()
    local from, tree = helper.quoted(folder .. "checkout"), folder .. "tree"
    sh(("mkdir %s && cp -pR Makefile LICENSE fewhead fewhead-scm-1.rockspec fewhead.pc.in lib kernels peers lua experiments "
      .. "results build %s"):format(from, from))
    sh(("cd %s && %s luarocks make --deps-mode=none --lua-version 5.1 --tree %s fewhead-scm-1.rockspec"):format(from,
      MAKE:gsub("make$", ""), helper.quoted(tree)))
    process.remove(folder .. "checkout")
    local options = { cwd = "/", env = { FEWHEAD_LIB = false, FEWHEAD_DEVICE = "cpu" } }
    local library = "\nlibrary     " .. tree .. "/lib/lua/5.1/libfewhead.so\n"
    assert.is_truthy(sh(tree .. "/bin/fewhead info", options):find(library, 1, true))
    assert.matches("\n  2 +.- pass ", sh(("%s/bin/fewhead run layouts --s-q 2 --layout vllm --seconds 0 --out %sout"):format(tree,
      folder), options))
    assert.matches("costs fitted to [^\n]+/nvidia%-h200/packed%.jsonl ",
      sh(tree .. "/bin/fewhead run overlap --pattern window --s-q 64 --on nvidia-h200", options))
    process.remove(folder)
  end)
end)
