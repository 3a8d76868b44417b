local ffi = require "ffi"
local overlap = require "fewhead.decide.overlap"
local pattern = require "fewhead.case.pattern"
local helper = require "spec.helper"
local process = require "spec.process"

-- Lists as fh.pattern gives them, from Lua tables of equal lengths.
local function lists_of(rows, lengths)
  local topk, s_kv = #rows[1], 0
  local indices = ffi.new("int32_t[?]", #rows * topk)
  for i, row in ipairs(rows) do
    for k, index in ipairs(row) do
      indices[(i - 1) * topk + k - 1] = index
      s_kv = math.max(s_kv, index + 1)
    end
  end
  local topk_length = lengths and ffi.new("int32_t[?]", #rows, lengths)
  return { indices = indices, topk_length = topk_length, s_q = #rows, s_kv = s_kv, topk = topk }
end

-- An int32 .npy file as NumPy writes it.
local function npy(data, count, shape)
  local header = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%s), }"):format(shape)
  header = header .. (" "):rep(128 - 10 - #header - 1) .. "\n"
  return "\147NUMPY\1\0" .. string.char(#header, 0) .. header .. ffi.string(data, count * 4)
end

local FOUR = { { 1, 2, 3, 4 }, { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 1, 9, 9, -1 } }

describe("overlap", function()
  it("is the union of a group beside one list, and rows referenced over distinct rows", function()
    assert.same({
      { group = 1, groups = 4, rows = 4, keys = 15, entries = 15, union = 1, dedup = 1 },
      { group = 2, groups = 2, rows = 4, keys = 15, entries = 11, union = (11 / 2) / (15 / 4), dedup = 15 / 11 },
      -- the list that has row 9 twice needs it twice
      { group = 4, groups = 1, rows = 4, keys = 15, entries = 10, union = 10 / (15 / 4), dedup = 15 / 10 },
      { group = 64, groups = 1, rows = 4, keys = 15, entries = 10, union = 10 / (15 / 4), dedup = 15 / 10 },
    }, assert(overlap.measure(lists_of(FOUR), { groups = { 1, 2, 4, 64 } })))
  end)

  it("is asked for 2, 4, 8, 16, 32 and 64 rows unless said otherwise", function()
    local groups = {}
    for i, row in ipairs(assert(overlap.measure(lists_of(FOUR)))) do groups[i] = row.group end
    assert.same({ 2, 4, 8, 16, 32, 64 }, groups)
  end)

  it("reads no further than topk_length", function()
    local row = assert(overlap.measure(lists_of(FOUR, { 4, 1, 0, 2 }), { groups = { 4 } }))[1]
    assert.same({ 7, 5, 7 / 5 }, { row.keys, row.entries, row.dedup })
  end)

  it("never joins rows of two requests", function()
    local row = assert(overlap.measure(lists_of(FOUR), { groups = { 2 }, cu_seqlens_q = { 0, 1, 4 } }))[1]
    assert.same({ 3, 15, 15, 1 }, { row.groups, row.keys, row.entries, row.dedup })
    row = assert(overlap.measure(lists_of(FOUR), { groups = { 4 }, cu_seqlens_q = { 0, 0, 2, 2, 4 } }))[1]
    assert.same({ 2, 11 }, { row.groups, row.entries })
  end)

  it("is nothing where nothing is listed", function()
    local row = assert(overlap.measure(lists_of({ { -1, -1 }, { -1, -1 } }), { groups = { 2 } }))[1]
    assert.same({ 0, 0, 1, 1 }, { row.keys, row.entries, row.union, row.dedup })
  end)

  it("counts a drawn capture exactly: a window of 16 moves by one a row", function()
    local lists = pattern.make("window", { s_q = 64, window = 16, prior = 100 })
    for _, row in ipairs(assert(overlap.measure(lists))) do
      assert.equal(64 * 16, row.keys)
      assert.equal(64 / row.group * (16 + row.group - 1), row.entries)
      assert.equal((16 + row.group - 1) / 16, row.union)
    end
  end)

  it("says what is wrong with offsets", function()
    local function refused(message, offsets)
      local rows, err = overlap.measure(lists_of(FOUR), { cu_seqlens_q = offsets })
      assert.is_nil(rows)
      assert.equal("cu_seqlens_q: " .. message, err)
    end
    refused("got 1 offsets, wanted at least 2: 0 and s_q", { 0 })
    refused("got 1 first, wanted 0", { 1, 4 })
    refused("got 3 last, wanted s_q = 4", { 0, 3 })
    refused("offset 3: got 1, wanted a whole number in 2 .. 4", { 0, 2, 1, 4 })
    refused("offset 2: got 5, wanted a whole number in 0 .. 4", { 0, 5 })
    assert.equal("overlap.measure: groups[1]: got 65, wanted a whole number in 1 .. 64",
      helper.refusal(function() overlap.measure(lists_of(FOUR), { groups = { 65 } }) end))
  end)
end)

describe("fh.overlap", function()
  local fh = require "fewhead"

  it("is one call: what is shared, and what that is worth on a machine", function()
    local found = assert(fh.overlap { pattern = "window", s_q = 64, on = "cpu", shared = 4 })
    assert.same({ "pattern window", 64, 6, 4 }, { found.name, found.lists.s_q, #found.rows, found.shared })
    for _, row in ipairs(found.rows) do
      assert.equal(64 / row.group, row.h_q)
      assert.is_true(row.padded > 0 and row.gather > 0 and row.packed > 0 and row.plan >= 0)
      assert.equal(row.padded / (row[row.choice] + (row.choice == "packed" and row.plan / 4 or 0)), row.gain)
    end
    assert.matches("^pattern window: 64 rows, topk 128, 128%.0 keys a row, KV rows 0 %.%. 190\n", tostring(found))
    assert.is_function(found.print)
  end)

  it("takes lists of a function", function()
    local found = assert(fh.overlap { pattern = { name = "same", row = function() return { 0, 1, 2, 3 } end }, s_q = 16,
      on = "cpu" })
    assert.equal("pattern function(same)", found.name)
    assert.same({ 2, 1, 2 }, { found.rows[1].group, found.rows[1].union, found.rows[1].dedup })
    assert.same({ 16, 16 }, { found.rows[4].group, found.rows[4].dedup })
  end)

  it("refuses what has no effect, and no lists at all", function()
    local function refused(o) return helper.refusal(function() local f = fh.overlap(o) return f end) end
    assert.equal("overlap: no lists, wanted indices or pattern", refused {})
    assert.equal("overlap: keep: has no effect without pattern " .. table.concat(fh.pattern.taking "keep", " or "),
      refused { pattern = "csa", keep = 0.5 })
    assert.equal("overlap: indices: has no effect with pattern", refused { pattern = "csa", indices = "x.npy" })
    assert.equal("overlap: topk_length: has no effect without indices", refused { pattern = "csa", topk_length = "x.npy" })
    assert.equal("overlap: shared: got {1, 2}, wanted a whole number >= 1", refused { pattern = "csa", shared = { 1, 2 } })
    assert.same({ nil, "x.npy: No such file or directory" }, { fh.overlap { indices = "x.npy" } })
  end)
end)

describe("experiments/overlap.lua", function()
  local folder
  before_each(function() folder = helper.folder() end)
  after_each(function() process.remove(folder) end)

  local function run(...)
    return process.run { "./fewhead", "run", "experiments/overlap.lua", ... }
  end

  local function four() return npy(lists_of(FOUR).indices, 16, "4, 4") end

  it("prints unions, times and choices of a capture", function()
    helper.write(folder .. "a.npy", four())
    local status, out, err = run("--indices", folder .. "a.npy", "--on", "cpu")
    assert.same({ 0, "" }, { status, err })
    assert.matches("a%.npy: 4 rows, topk 4, 3%.8 keys a row, KV rows 0 %.%. 9\n", out)
    assert.matches("\nrows a group +union / one list +dedup +for h_q +padded us +gather us +packed us +plan us ", out)
    assert.matches("\n +2 +1%.47 +1%.36 +32 +%d+ +%d+ +%d+ +%d+ +%l+ +%d", out)
    assert.matches("\n +4 +2%.67 +1%.50 +16 ", out)
    assert.matches("\n +64 +2%.67 +1%.50 +1 ", out)
    assert.matches("\nus: expected on [^\n]+, the library's built%-in costs [^\n]+; the choice pays for the plan\n$", out)
  end)

  it("counts the same in a capture as in what it was made of", function()
    local lists = pattern.make("local", { s_q = 256, seed = 3, ratio = 2, prior = 7936 })
    helper.write(folder .. "a.npy", npy(lists.indices, 256 * 640, "256, 1, 640"))
    helper.write(folder .. "length.npy", npy(lists.topk_length, 256, "256,"))
    local status, out = run("--indices", folder .. "a.npy", "--topk-length", folder .. "length.npy", "--on", "cpu")
    assert.equal(0, status)
    for _, row in ipairs(assert(overlap.measure(lists))) do
      assert.matches(("\n +%d +%.2f +%.2f +%d "):format(row.group, row.union, row.dedup, 64 / row.group):gsub("%.", "%%."), out)
    end
  end)

  it("takes raw int32 with a JSON header, offsets, and the first rows alone", function()
    helper.write(folder .. "raw", ffi.string(lists_of(FOUR).indices, 64))
    helper.write(folder .. "raw.json", '{ "dtype": "int32", "shape": [4, 4] }')
    local status, out = run("--indices", folder .. "raw", "--cu-seqlens-q", "0,1,4", "--on", "cpu", "--shared", "4")
    assert.equal(0, status)
    assert.matches("raw: 4 rows of 2 requests, topk 4, ", out)
    assert.matches("\n +2 +1%.33 +1%.00 ", out)
    assert.matches("; the choice pays for 1/4 of the plan\n$", out)
    status, out = run("--indices", folder .. "raw", "--s-q", "2", "--on", "cpu")
    assert.equal(0, status)
    assert.matches("raw: 2 rows, topk 4, 4%.0 keys a row, KV rows 0 %.%. 4\n", out)
    assert.matches("\n +2 +1%.00 +2%.00 ", out)
  end)

  it("takes a pattern in place of a file", function()
    local status, out = run("--pattern", "window", "--s-q", "64", "--on", "cpu")
    assert.equal(0, status)
    assert.matches("^pattern window: 64 rows, topk 128, 128%.0 keys a row, KV rows 0 %.%. 190\n", out)
    assert.matches("\n +8 +1%.05 +7%.59 +8 ", out)
  end)

  it("says in one line what is wrong with files", function()
    local function refused(message, status_wanted, ...)
      local status, out, err = run(...)
      assert.same({ status_wanted, "" }, { status, out })
      assert.equal(("overlap: %s\n"):format(message:gsub("FOLDER/", folder)), err)
    end
    refused('--indices: got "FOLDER/none.npy", wanted a file that can be read (No such file or directory) (--help lists the '
      .. "options)", 2, "--indices", folder .. "none.npy")
    helper.write(folder .. "text.npy", "1 2 3\n")
    refused("FOLDER/text.npy: not an .npy file: it does not start with \\x93NUMPY", 1, "--indices", folder .. "text.npy")
    helper.write(folder .. "flat.npy", npy(lists_of(FOUR).indices, 16, "16,"))
    refused("FOLDER/flat.npy: got shape {16}, wanted {s_q, topk} or {s_q, 1, topk}", 1, "--indices", folder .. "flat.npy")
    helper.write(folder .. "a.npy", four())
    helper.write(folder .. "short.npy", npy(lists_of(FOUR).indices, 3, "3,"))
    refused("--topk-length: got FOLDER/short.npy of shape {3}, wanted {4}: one number for each row of indices", 1, "--indices",
      folder .. "a.npy", "--topk-length", folder .. "short.npy")
    refused("cu_seqlens_q: got 3 last, wanted s_q = 4", 1, "--indices", folder .. "a.npy", "--on", "cpu", "--cu-seqlens-q",
      "0,3")
    refused('--cu-seqlens-q: got "0,x", wanted whole numbers, 0 first and s_q last (--help lists the options)', 2,
      "--indices", folder .. "a.npy", "--cu-seqlens-q", "0,x")
    refused("no lists, wanted --indices FILE or --pattern NAME (--help lists the options)", 2)
    refused("--indices: has no effect with --pattern (--help lists the options)", 2, "--indices",
      folder .. "a.npy", "--pattern", "csa")
    refused('machine: got "h300", wanted cpu, cuda:N, a FILE.jsonl, or a folder of results/ with packed.jsonl in it, such as '
      .. "nvidia-h200", 1, "--indices", folder .. "a.npy", "--on", "h300")
  end)
end)
