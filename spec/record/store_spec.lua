local helper = require "spec.helper"
local json = require "fewhead.base.json"
local store = require "fewhead.record.store"

local folder
before_each(function() folder = helper.folder():sub(1, -2) end)
after_each(function() helper.shell("chmod -R u+w " .. folder .. "; rm -rf " .. folder) end)

local function record(path, status)
  return { path = path, provider = "fewhead", case = { s_q = 4 }, parity = { status = status or "invalid", reason = "none" } }
end

local function cell(status) return { record("padded", status), record("gather", status) } end

local function text(run) return helper.read(run.folder .. "/records.jsonl") end

describe("store.create", function()
  it("makes a folder of its own for each run, also within one second, and `latest` is the one started last", function()
    local names = {}
    for i = 1, 3 do
      local run = assert(store.create(folder, "x", { seconds = i }))
      names[i] = run.name
      assert.equal(i, run.head.sequence)
      assert.equal(run.name, (helper.shell("readlink " .. folder .. "/latest")))
      assert.matches("^%d%d%d%d%d%d%d%dT%d%d%d%d%d%dZ%-x", run.name)
      run:finish { state = "complete" }
      local head = assert(store.head(run.folder))
      assert.same({ i, "complete", run.name }, { head.seconds, head.state, head.name })
    end
    assert.is_true(names[1] ~= names[2] and names[2] ~= names[3] and names[1] ~= names[3])
  end)

  it("does so when the clock goes back", function()
    local real, hour = os.date, nil
    os.date = function(format) return real(format, 1700000000 + hour * 3600) end -- luacheck: ignore 122
    local ok, err = pcall(function()
      for i, at in ipairs { 0, -7, 3, 0 } do
        hour = at
        local run = assert(store.create(folder, "x", {}))
        run:finish()
        assert.equal(run.name, (helper.shell("readlink " .. folder .. "/latest")))
        assert.equal(i, run.head.sequence)
      end
      hour = 0
      assert.equal("20231114T221320Z-x-2", (helper.shell("readlink " .. folder .. "/latest")))
    end)
    os.date = real -- luacheck: ignore 122
    assert(ok, err)
  end)

  it("is two folders for two processes that start at once", function()
    local code = ([[
      local run = assert(require("fewhead.record.store").create(%q, "x", {}))
      run:finish()
      print(run.head.sequence)]]):format(folder)
    local file = helper.write(folder .. "/start.lua", code)
    helper.shell(("cd %s. && for i in 1 2 3 4 5 6; do ./fewhead run %s >>%s/out & done; wait"):format(helper.root, file, folder))
    assert.equal("1\n2\n3\n4\n5\n6", (helper.shell(("sort -n %s/out"):format(folder))))
    assert.equal("6", (helper.shell(("ls -d %s/*-x* | wc -l"):format(folder))))
  end)

  it("refuses a folder that cannot be written", function()
    helper.write(folder .. "/file", "kept")
    assert.same({ nil, folder .. "/file: Not a directory" }, { store.create(folder .. "/file", "x", {}) })
  end)
end)

describe("a run", function()
  it("keeps the records of each cell, and goes on where it stopped", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:add("aa", 1, cell()))
    assert(run:add("bb", 2, cell()))
    local again, err = store.resume(run.folder)
    assert.same({ nil, run.folder .. ": another process is writing to this run" }, { again, err })
    run:finish { state = "interrupted" }
    again = assert(store.resume(run.folder))
    assert.same({ "aa", "bb" }, again.order)
    assert.equal("gather", again.done.bb[2].path)
    assert.same({ id = "bb", at = 2, of = 2 }, again.done.bb[2].cell)
    assert(again:add("cc", 3, cell()))
    again:finish { state = "complete" }
    local done, order = store.cells(run.folder)
    assert.same({ "aa", "bb", "cc" }, order)
    assert.equal(2, #done.cc)
  end)

  it("loses a torn line or cell at its end, and no more, whatever byte it ends with", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:add("aa", 1, cell()))
    local first = #text(run)
    assert(run:add("bb", 2, cell()))
    run:finish()
    local whole = text(run)
    for bytes = first, #whole do
      helper.write(run.folder .. "/records.jsonl", whole:sub(1, bytes))
      local again = assert(store.resume(run.folder))
      assert.same(bytes == #whole and { "aa", "bb" } or { "aa" }, again.order)
      assert(again:add("cc", 3, cell()))
      again:finish()
      local _, order = store.cells(run.folder)
      assert.same(bytes == #whole and { "aa", "bb", "cc" } or { "aa", "cc" }, order)
    end
  end)

  it("refuses a damaged line in the middle, by its number", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:add("aa", 1, cell()))
    assert(run:add("bb", 2, cell()))
    run:finish()
    helper.write(run.folder .. "/records.jsonl", "{}\n" .. text(run))
    local again, err = store.resume(run.folder)
    assert.same({ nil, run.folder .. "/records.jsonl: line 1: path: got nil, wanted a string" }, { again, err })
  end)

  it("drops the cells that are to be measured again", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:add("aa", 1, cell()))
    assert(run:add("bb", 2, cell("error")))
    assert(run:add("cc", 3, cell()))
    assert.equal(1, run:drop(function(list) return list[1].parity.status == "error" end))
    assert.same({ "aa", "cc" }, run.order)
    assert(run:add("bb", 2, cell()))
    run:finish()
    assert.same({ "aa", "cc", "bb" }, (select(2, store.cells(run.folder))))
  end)

  it("writes the record's fields in their order", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:add("aa", 1, { record("padded") }))
    run:finish()
    assert.matches('^{"path":"padded","provider":"fewhead",', text(run))
    assert.same({ id = "aa", at = 1, of = 1 }, json.decode(text(run):match("[^\n]+")).cell)
  end)
end)

describe("store.find", function()
  it("takes a file, a run's folder, and a folder of runs", function()
    local run = assert(store.create(folder, "x", { cells = 3, seconds = 60 }))
    run:finish { state = "complete" }
    assert.equal(run.folder .. "/records.jsonl", store.find(run.folder))
    assert.equal(folder .. "/latest/records.jsonl", store.find(folder))
    assert.equal(run.path, store.find(run.path))
    assert.equal(("run %s: 3 cells, --seconds 60, complete"):format(run.name), store.describe(store.find(folder)))
    assert.equal("some/file.jsonl", store.describe("some/file.jsonl"))
  end)

  it("says what is missing", function()
    assert.same({ nil, folder .. "/none: No such file or directory" }, { store.find(folder .. "/none") })
    assert.same({ nil, folder .. ": no run in it, wanted a folder with records.jsonl or latest in it" }, { store.find(folder) })
  end)
end)

describe("runs of several kinds in one folder", function()
  local function start(name, head)
    local run = assert(store.create(folder, name, head))
    run:finish { state = "complete" }
    return run
  end

  it("is the newest of the kind that is wanted", function()
    local first, second = start("sweep", { plan = "p" }), start("sweep", { plan = "p" })
    assert.equal(folder .. "/latest", store.folder(folder, store.is_sweep))
    local other = start("peers", {})
    assert.equal(folder .. "/latest", store.folder(folder))
    assert.equal(other.name, (helper.shell("readlink " .. folder .. "/latest")))
    assert.equal(second.folder, store.folder(folder, store.is_sweep))
    assert.equal(second.path, store.find(folder, store.is_sweep))
    assert.equal(other.path, store.find(other.folder, store.is_sweep)) -- named, so it is meant
    helper.shell("rm -r " .. second.folder)
    assert.equal(first.folder, store.folder(folder, store.is_sweep))
    helper.shell("rm -r " .. first.folder)
    assert.same({ nil, folder .. ": no run of a sweep in it" }, { store.find(folder, store.is_sweep) })
  end)

  it("is one of an experiment, which goes on with other records", function()
    local run = start("x", { experiment = "x" })
    start("sweep", { plan = "p" })
    assert.equal(run.folder, store.folder(folder, store.is_of "x"))
    assert.same({ nil, folder .. ": no run of that kind in it" }, { store.folder(folder, store.is_of "y") })
    local again = assert(store.reopen(run.folder))
    assert(again:append { record("padded") })
    assert(again:rewrite { record("gather"), record("packed") })
    assert(again:append { record("auto") })
    again:finish()
    local paths = {}
    for r in require("fewhead.record.record").lines(run.path) do paths[#paths + 1] = r.path end
    assert.same({ "gather", "packed", "auto" }, paths)
    assert.is_nil((store.reopen(folder .. "/none")))
  end)

  it("keeps its own folder's name where it was named as the latest", function()
    local run = start("sweep", { plan = "p" })
    local again = assert(store.resume(folder .. "/latest"))
    assert.equal(run.folder, again.folder)
    again:finish()
  end)

  it("takes records that belong to no cell", function()
    local run = assert(store.create(folder, "x", {}))
    assert(run:append { record("padded"), { kind = "serving", run = {} } })
    assert(run:append { record("gather") })
    run:finish()
    assert.same({ nil, run.path .. ": closed" }, { run:append { record("gather") } })
    local _, lines = text(run):gsub("\n", "")
    assert.equal(3, lines)
    assert.is_nil(text(run):find('"cell"', 1, true))
  end)
end)

describe("evidence", function()
  it("goes to a device's folder in results/, and its runs to results/local", function()
    assert.same({ "results/local", "results/nvidia-h200" }, { store.place("results/nvidia-h200") })
    assert.same({ "/a b/results/local", "/a b/results/x/" }, { store.place("/a b/results/x/") })
    for _, out in ipairs { "results/local", "results/local/", "results", "results/local/ci", "my/results-x/y", "out" } do
      assert.same({ out }, { store.place(out) })
    end
  end)

  it("is a copy of the run's files under its own name", function()
    local run = assert(store.create(folder .. "/results/local", "gate_sweep", {}))
    assert(run:append { record("padded") })
    helper.write(run.folder .. "/report.md", "![x](report.svg) ![y](report_traffic.svg) report.svg\n")
    helper.write(run.folder .. "/report_traffic.svg", "<svg/>")
    helper.write(run.folder .. "/gates.json", "{}")
    run:finish { state = "complete" }
    local to = folder .. "/results/box"
    assert.same({ "gates.json", "x.jsonl", "x.md", "x_traffic.svg" }, (store.publish(run.folder, to, "x")))
    assert.equal("gates.json\nx.jsonl\nx.md\nx_traffic.svg", (helper.shell("ls -A " .. to)))
    assert.equal("![x](x.svg) ![y](x_traffic.svg) report.svg\n", helper.read(to .. "/x.md"))
    assert.equal(text(run), helper.read(to .. "/x.jsonl"))
    assert.equal("gates.json\nrecords.jsonl\nreport.md\nreport_traffic.svg\nrun.json", (helper.shell("ls -A " .. run.folder)))
  end)

  it("is refused before the run where a folder cannot be written", function()
    helper.write(folder .. "/file", "kept")
    local reason = ('--out: got "%s/file", wanted a folder to write to: Not a directory'):format(folder)
    assert.same({ nil, reason }, { store.writable(folder .. "/file") })
    assert.is_true(store.writable(folder .. "/runs"))
    assert.equal("", (helper.shell("ls -A " .. folder .. "/runs")))
    assert.is_true(store.writable(folder .. "/results/DEVICE"))
    assert.equal("local", (helper.shell("ls -A " .. folder .. "/results")))
    helper.write(folder .. "/results/box", "kept")
    local _, err = store.writable(folder .. "/results/box")
    assert.equal(('--out: got "%s/results/box", wanted a folder to write to: Not a directory'):format(folder), err)
  end)
end)
