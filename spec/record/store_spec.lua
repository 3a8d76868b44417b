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
