-- Output files: names that no other run has, disks that fill up, runs that were killed.
local files = require "fewhead.record.file"
local helper = require "spec.helper"
local posix = require "fewhead.base.posix"
local process = require "spec.process"
local temporary = require "fewhead.base.temporary"

local folder
before_each(function() folder = helper.folder() end)
after_each(function() process.remove(folder) end)

local function listing() return (helper.shell("ls -A " .. folder)) end

-- Runs Lua code in a process whose files may have so many KiB: past them a write fails, as on a full disk.
local function limited(kib, code)
  local status, out, err = process.run(("trap '' XFSZ; ulimit -f %d; exec luajit -e %s"):format(2 * kib, helper.quoted(code)),
    { env = { LUA_PATH = process.root .. "/lua/?.lua;" .. process.root .. "/lua/?/init.lua;;" } })
  assert.same({ 0, "" }, { status, err })
  return out
end

describe("temporary files #robustness", function()
  it("have random names that two processes with the same number do not share", function()
    -- A pid namespace of its own gives the same numbers; a fixed number stands for it.
    local pid = posix.pid
    finally(function() posix.pid = pid end)
    posix.pid = function() return 1 end
    local path, names = folder .. "x.jsonl", {}
    local writers = {}
    for i = 1, 50 do
      writers[i] = assert(files.writer(path))
      local name = writers[i].temporary
      assert.matches("^" .. path:gsub("%p", "%%%0") .. "%.%x+%.tmp$", name)
      assert.equal(16, #name:match("%.(%x+)%.tmp$"))
      assert.is_nil(names[name])
      names[name] = true
    end
    for i, writer in ipairs(writers) do assert(writer:add(("%d\n"):format(i))) end
    for _, writer in ipairs(writers) do assert(writer:commit()) end
    assert.equal("50\n", process.read(path))
    assert.equal("x.jsonl", listing())
  end)

  it("in two pid namespaces at once are two files, each whole", function()
    local code = ([[
      local w = assert(require("fewhead.record.file").writer(%q))
      for i = 1, 200 do assert(w:add(arg[1]:rep(99) .. "\n")) end
      assert(w:commit())]]):format(folder .. "x.jsonl")
    process.write(folder .. "run.lua", code)
    local apart = helper.shell("unshare -rpf true && echo yes"):find("yes") and "unshare -rpf " or "" -- may not be allowed
    local status, _, err = process.run(("for c in a b; do %sluajit %srun.lua $c & done; wait"):format(apart, folder),
      { env = { LUA_PATH = process.root .. "/lua/?.lua;;" } })
    assert.same({ 0, "" }, { status, err })
    local text = process.read(folder .. "x.jsonl")
    local whole = text == (("a"):rep(99) .. "\n"):rep(200) or text == (("b"):rep(99) .. "\n"):rep(200)
    assert.is_true(whole)
    assert.equal("run.lua\nx.jsonl", listing())
  end)

  it("of a run that was killed are removed by the next one, those of a living one are not", function()
    local path = folder .. "x.jsonl"
    local killed = ([[
      local w = assert(require("fewhead.record.file").writer(%q))
      assert(w:add "half\n")
      require("fewhead.base.posix").kill(require("fewhead.base.posix").pid(), 9)]]):format(path)
    assert.equal(128 + 9, (process.run({ "luajit", "-e", killed }, { env = { LUA_PATH = process.root .. "/lua/?.lua;;" } })))
    local left = listing()
    assert.matches("^x%.jsonl%.%x+%.tmp$", left)
    local living = assert(files.writer(path)) -- removes the dead one's
    assert.equal(living.temporary, folder .. listing())
    local other = assert(files.writer(path)) -- leaves the living one's
    assert.equal(2, select(2, (listing() .. "\n"):gsub("\n", "")))
    assert(living:add "living\n")
    assert(living:commit())
    other:discard()
    assert.equal("x.jsonl", listing())
  end)

  it("of other names stay", function()
    for _, name in ipairs { "x.jsonl.123.tmp", "x.jsonl.0123456789abcdeg.tmp", "y.jsonl.0123456789abcdef.tmp", "x.jsonl.tmp" } do
      process.write(folder .. name, "mine")
    end
    assert.equal(0, temporary.clear(folder .. "x.jsonl"))
    process.write(folder .. "x.jsonl.0123456789abcdef.tmp", "left")
    assert.equal(1, temporary.clear(folder .. "x.jsonl"))
    assert.equal("x.jsonl.0123456789abcdeg.tmp\nx.jsonl.123.tmp\nx.jsonl.tmp\ny.jsonl.0123456789abcdef.tmp", listing())
  end)

  it("go when a run is ended by Ctrl-C, TERM or HUP", function()
    helper.with_file(([[
      local interrupt, posix = require "fewhead.cli.interrupt", require "fewhead.base.posix"
      interrupt.during(function(pressed)
        local w = assert(require("fewhead.record.file").writer(%q))
        assert(w:add "one\n")
        print "ready"; io.stdout:flush()
        for _ = 1, 300 do
          posix.sleep_us(10000)
          if pressed() then break end
        end
        assert(w:commit())
      end)]]):format(folder .. "x.jsonl"), function(path)
        for _, signal in ipairs { "INT", "TERM", "HUP" } do
          local status = process.run(([[out=$(mktemp); ./fewhead run %s >"$out" & pid=$!
            tries=0; while ! grep -q ready "$out" && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
            kill -%s $pid; wait $pid; status=$?; rm "$out"; exit $status]]):format(path, signal))
          assert.same({ 0, "x.jsonl", "one\n" }, { status, listing(), process.read(folder .. "x.jsonl") })
          os.remove(folder .. "x.jsonl")
        end
      end)
  end)
end)

describe("a disk that fills up #robustness", function()
  it("keeps the old file where nothing whole was written", function()
    process.write(folder .. "x.md", "whole\n")
    local out = limited(1, ([[print(require("fewhead.record.file").write(%q, ("x"):rep(5000)))]]):format(folder .. "x.md"))
    assert.equal(("nil\t%sx.md: File too large\n"):format(folder), out)
    assert.same({ "x.md", "whole\n" }, { listing(), process.read(folder .. "x.md") })
  end)

  it("keeps the whole pieces before it, under the file's name", function()
    local out = limited(4, ([[
      local w = assert(require("fewhead.record.file").writer(%q))
      for i = 1, 100 do
        local ok, err = w:add(("%%02d "):format(i) .. ("x"):rep(96) .. "\n")
        if not ok then print(i, err) break end
      end]]):format(folder .. "x.jsonl"))
    assert.equal(("41\t%sx.jsonl: File too large; the file ends before it\n"):format(folder), out)
    local text = process.read(folder .. "x.jsonl")
    assert.equal(4000, #text)
    assert.matches("\n40 x+\n$", text)
    assert.equal("x.jsonl", listing())
  end)

  it("in the middle of a sweep: the file so far, every cell in the table, one line that says so, status 1", function()
    local status, out, err = process.run(("trap '' XFSZ; ulimit -f 20; exec ./fewhead run experiments/gate_sweep.lua --s-q "
      .. "1,2,4,8,16 --layout vllm --seconds 0 --out %s"):format(folder), { env = { FEWHEAD_DEVICE = "cpu" } })
    assert.equal(1, status)
    for _, s_q in ipairs { 1, 2, 4, 8, 16 } do assert.matches(("\n +%d +[^\n]+ pass "):format(s_q), out) end
    assert.equal(("gate_sweep: %s/%s/records.jsonl: File too large; the file ends before it\n"):format(folder,
      helper.shell("readlink " .. folder .. "latest")), err)
    local sweep = assert(require("fewhead.decide.sweep").read(folder))
    assert.is_true(#sweep.records >= 1 and #sweep.records < 20)
  end)

  -- A file system of 40 KiB, where this machine lets a person mount one.
  it("of 40 KiB, a real one", function()
    local mounts = helper.shell("unshare -rm sh -c 'mount -t tmpfs -o size=40k none /mnt && echo yes'"):find("yes")
    if not mounts then return pending("no file system can be mounted here") end
    local status, out, err = process.run([[exec unshare -rm sh -c 'mount -t tmpfs -o size=40k none /mnt && ./fewhead run \
      experiments/gate_sweep.lua --s-q 1:64:*2 --layout vllm,contiguous --seconds 0 --out /mnt; status=$?
      wc -l </mnt/latest/records.jsonl; exit $status']], { env = { FEWHEAD_DEVICE = "cpu" } })
    assert.equal(1, status)
    assert.matches("^gate_sweep: /mnt/[%w_-]+/records.jsonl: No space left on device; the file ends before it\n$", err)
    assert.matches("\ncontiguous +64 ", out)
    assert.is_true(tonumber(out:match("(%d+)\n$")) > 5)
  end)
end)
