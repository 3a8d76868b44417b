local helper = require "spec.helper"
local process = require "spec.process"
local some = require "spec.report.some_records"
local source = require "fewhead.report.source"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local function write(name, list) return helper.write(folder .. name, some.text(list)) end

describe("source.read", function()
  it("reads a file, and a folder with those below it in order", function()
    helper.shell("mkdir " .. folder .. "b")
    local file = write("z.jsonl", { some.record(1) })
    write("b/a.jsonl", { some.record(2), some.record(3) })
    helper.write(folder .. "note.md", "no record")
    assert.equal(1, #source.read(file).records)
    local all = source.read(folder)
    assert.same({ 1, 2, 3 }, { all.records[1].time.median_us, all.records[2].time.median_us, all.records[3].time.median_us })
    assert.same({ folder .. "z.jsonl", folder .. "b/a.jsonl" }, all.files)
  end)

  it("finds the records of a commit or a run below the results", function()
    write("a.jsonl", { some.record(1, { run = some.run("a") }), some.record(2, { run = some.run("b") }) })
    local found = assert(source.read("bbbbbbb", { results = folder }))
    assert.equal(2, found.records[1].time.median_us)
    assert.equal(1, #found.records)
    assert.same({ nil, ("ccccccc: no file or folder, and no record below %s/ is of such a commit or run"):format(folder) },
      { source.read("ccccccc", { results = folder }) })
  end)

  it("finds the folder of a run or a device by its name, and reads the newest run once", function()
    helper.shell(("cd %s && mkdir -p local/2026-a box && ln -s 2026-a local/latest"):format(folder))
    write("local/2026-a/records.jsonl", { some.record(1) })
    write("box/a.jsonl", { some.record(2), some.record(3) })
    local function count(name) return #assert(source.read(name, { results = folder })).records end
    assert.same({ 1, 2, 1, 3 }, { count "2026-a", count "box", count(folder .. "local"), count(folder) })
    assert.equal(1, count(folder .. "local/latest"))
  end)

  it("names the line that is no record, and leaves it out only when told to", function()
    local path = helper.write(folder .. "x.jsonl", some.text { some.record(1) } .. '{"path":\n' .. some.text { some.record(2) }
      .. '{"path":"x"}\n')
    local none, err = source.read(path)
    assert.is_nil(none)
    assert.matches("^" .. path:gsub("%p", "%%%0") .. ":2: json: ", err)
    local found = assert(source.read(path, { skip_bad = true }))
    assert.equal(2, #found.records)
    assert.equal(2, #found.skipped)
    assert.equal(path .. ":4: case: got nil, wanted a table", found.skipped[2])
  end)

  it("takes times of 0 us", function()
    assert.equal(0, source.read(write("x.jsonl", { some.record(0) })).records[1].time.median_us)
  end)

  it("says what a name is not", function()
    assert.same({ nil, "nothing here: no file, folder, commit or run of that name" }, { source.read("nothing here") })
    assert.same({ nil, folder .. ": no record in it" }, { source.read(folder) })
  end)

  it("lists runs by date", function()
    local late = some.run("b")
    late.date = "2026-01-03T00:00:00Z"
    local runs = source.runs { some.record(1, { run = late }), some.record(2), some.record(3) }
    assert.same({ "a", "b" }, { runs[1].id, runs[2].id })
    assert.equal(2, #runs)
  end)
end)

-- Records are read, compared and drawn on machines that build nothing.
describe("Commands that only read records", function()
  it("need no library", function()
    local file = "results/nvidia-h200/peers.jsonl"
    for _, words in ipairs {
      { "compare", file, file }, { "plot", file }, { "page", file, "--out", folder .. "x.html" },
      { "export", file, "--out", folder .. "x.csv" },
    } do
      local status, _, err = process.run({ "./fewhead", unpack(words) }, { env = { FEWHEAD_LIB = folder .. "none.so" } })
      assert.same({ words[1], 0, "" }, { words[1], status, err })
    end
  end)

  it("draw the published gate where the library has it", function()
    assert.equal(require("fewhead.decide.gate").default_min_sq, require("fewhead.serve.published").min_sq)
  end)
end)
