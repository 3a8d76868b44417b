local helper = require "spec.helper"
local report = require "fewhead.report.report"

local folder

local read = helper.read

-- Names in the folder, so that a temporary file left behind shows.
local function listing()
  local names = {}
  for name in io.popen("ls -A '" .. folder .. "'"):lines() do names[#names + 1] = name end
  return names
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

describe("report.table", function()
  local columns = {
    { key = "s_q" },
    { key = "verdict", align = "left" },
    { key = "ratio", title = "padded / native", format = "%.2f" },
    { key = "us", format = function(us, row) return report.time(us) .. (row.s_q == 64 and "*" or "") end },
  }
  local rows = { { s_q = 64, verdict = "slower", ratio = 0.5, us = 85.07 }, { s_q = 2048, verdict = "faster", us = 2.5e6 } }

  it("aligns columns, prints nil as - and leaves no blanks at line ends", function()
    assert.equal(table.concat({
      " s_q  verdict  padded / native        us",
      "  64  slower              0.50  85.1 us*",
      "2048  faster                 -    2.50 s",
    }, "\n"), report.table(rows, columns))
    assert.equal("a\nx", report.table({ { a = "x" } }, { { key = "a", align = "left" } }))
  end)

  it("counts characters, not bytes", function()
    assert.equal("name  n\né     1", report.table({ { name = "é", n = 1 } }, { { key = "name", align = "left" }, { key = "n" } }))
  end)

  it("prints the titles alone when there are no rows", function()
    assert.equal("s_q", report.table({}, { { key = "s_q" } }))
  end)

  it("writes markdown with alignment, and escapes what would end a cell", function()
    assert.equal("| s_q | name |\n| ---: | --- |\n| 64 | a\\|b |\n",
      report.markdown({ { s_q = 64, name = "a|b" } }, { { key = "s_q" }, { key = "name", align = "left" } }))
  end)
end)

describe("report.time", function()
  it("chooses the unit", function()
    assert.equal("999.9 us", report.time(999.9))
    assert.equal("1.00 ms", report.time(1000))
    assert.equal("1.50 s", report.time(1.5e6))
  end)
end)

describe("report.write", function()
  it("makes folders, writes the bytes and leaves no other file", function()
    assert.is_true(report.write(folder .. "/a/b/x.md", "one\r\n\0two"))
    assert.equal("one\r\n\0two", read(folder .. "/a/b/x.md"))
    assert.same({ "a" }, listing())
    assert.is_true(report.write(folder .. "/y", ""))
    assert.same({ "a", "y" }, listing())
  end)

  it("says why it cannot, and leaves what was there", function()
    assert.is_true(report.write(folder .. "/file", "old"))
    local ok, err = report.write(folder .. "/file/x.md", "new")
    assert.is_nil(ok)
    assert.matches("file/x%.md.*Not a directory$", err)
    assert.equal("old", read(folder .. "/file"))
    assert.is_true(report.write(folder .. "/place/inner", "old"))
    ok, err = report.write(folder .. "/place", "new") -- a folder stands there: the rename fails
    assert.is_nil(ok)
    assert.matches("^" .. folder:gsub("%p", "%%%0") .. "/place: ", err)
    assert.same({ "file", "place" }, listing())
  end)

  it("refuses a text that is none", function()
    local ok, err = pcall(function() report.write(folder .. "/x", 5) end)
    assert.is_false(ok)
    assert.matches("report_spec%.lua:%d+: report%.write: text: got 5, wanted a string$", err)
  end)
end)

describe("report.writer", function()
  it("keeps the old file until commit, and hands every piece to the system at once", function()
    local path = folder .. "/x.jsonl"
    assert(report.write(path, "whole\n"))
    local writer = assert(report.writer(path))
    assert.is_true(writer:add("one\n"))
    assert.equal("whole\n", read(path))
    assert.equal("one\n", read(writer.temporary))
    assert.is_true(writer:add("two\n"))
    assert.is_true(writer:commit())
    assert.equal("one\ntwo\n", read(path))
    assert.same({ "x.jsonl" }, listing())
  end)

  it("discards without a trace, and safely twice", function()
    local path = folder .. "/x.jsonl"
    assert(report.write(path, "whole\n"))
    local writer = assert(report.writer(path))
    assert(writer:add("half"))
    writer:discard()
    writer:discard()
    assert.equal("whole\n", read(path))
    assert.same({ "x.jsonl" }, listing())
  end)

  it("keeps the old file when the disk is full", function()
    -- /dev/full refuses every byte; the name of the temporary file is foretold by a link.
    local path = folder .. "/x.jsonl"
    assert(report.write(path, "whole\n"))
    os.execute(("ln -s /dev/full '%s.%d.tmp'"):format(path, require("fewhead.base.posix").pid()))
    local ok, err = report.write(path, "new\n")
    assert.is_nil(ok)
    assert.matches("x%.jsonl: No space left on device$", err)
    assert.equal("whole\n", read(path))
    assert.same({ "x.jsonl" }, listing())
  end)
end)

describe("a progress line", function()
  local progress = require "fewhead.cli.progress"

  it("writes, replaces and clears on a terminal, and cuts long texts", function()
    local file = io.open(folder .. "/terminal", "w")
    local line = progress.new { terminal = true, stream = file }
    line:show("1 of 2")
    line:show(("x"):rep(100))
    line:clear()
    line:clear()
    file:close()
    assert.equal("\r1 of 2\27[K\r" .. ("x"):rep(79) .. "\27[K\r\27[K", read(folder .. "/terminal"))
  end)

  it("writes nothing elsewhere", function()
    local file = io.open(folder .. "/log", "w")
    local line = progress.new { terminal = false, stream = file }
    line:show("1 of 2")
    line:clear()
    file:close()
    assert.equal("", read(folder .. "/log"))
  end)
end)

describe("interrupt.during", function()
  local interrupt = require "fewhead.cli.interrupt"
  local pid = require("fewhead.base.posix").pid()

  it("sees Ctrl-C instead of dying of it, remembers, and hands results on", function()
    local seen = {}
    local one, two = interrupt.during(function(pressed)
      seen[1] = pressed()
      os.execute("kill -INT " .. pid)
      seen[2], seen[3] = pressed(), pressed()
      return "one", "two"
    end)
    assert.same({ false, true, true }, seen)
    assert.same({ "one", "two" }, { one, two })
    assert.is_false(interrupt.during(function(pressed) return pressed() end))
  end)

  it("drops a press that nobody asked about", function()
    assert.equal(5, interrupt.during(function()
      os.execute("kill -INT " .. pid)
      return 5
    end))
  end)

  it("passes errors on as they are, and lets Ctrl-C end the program again", function()
    local thing = {}
    local ok, err = pcall(interrupt.during, function() error(thing) end)
    assert.is_false(ok)
    assert.equal(thing, err)
    local out, status = helper.luajit([[
      jit.off() -- compiled code asks for no signals
      local ffi = require "ffi"
      ffi.cdef "int raise(int signal);"
      pcall(require("fewhead.cli.interrupt").during, error)
      ffi.C.raise(2)
      for i = 1, 1e6 do i = i + 1 end
      print "survived"]])
    assert.matches("interrupted!", out)
    assert.equal(1, status)
  end)
end)
