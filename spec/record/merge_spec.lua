-- Parts of a sweep and what becomes of them together.
local fh = require "fewhead"
local helper = require "spec.helper"
local merge = require "fewhead.record.merge"
local process = require "spec.process"

local folder = helper.folder()
teardown(function() process.remove(folder) end)

local OPTIONS = { "--s-kv", "64", "--topk", "16", "--pattern", "uniform", "--min-samples", "1", "--seconds", "0" }
local S_Q = "1:7:1"

-- Runs the gate sweep with more words; status, output, errors.
local function sweep(words, env)
  local all = { "./fewhead", "run", "experiments/gate_sweep.lua", unpack(OPTIONS) }
  for _, word in ipairs(words) do all[#all + 1] = word end
  env = env or {}
  env.FEWHEAD_DEVICE, env.FEWHEAD_THREADS = "cpu", env.FEWHEAD_THREADS or "1"
  return process.run(all, { env = env })
end

local function part(i, n, out, more, env)
  local words = { "--s-q", S_Q, "--shard", ("%d/%d"):format(i, n), "--out", folder .. out }
  for _, word in ipairs(more or {}) do words[#words + 1] = word end
  return sweep(words, env)
end

local function problems(list)
  for i, path in ipairs(list) do list[i] = folder .. path end
  local run, found = merge.merge(list, folder .. "no", "x")
  assert.is_nil(run)
  local text = table.concat(found, "\n"):gsub(folder:gsub("%p", "%%%0"), "")
  return (text:gsub("%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x", "HASH"))
end

setup(function()
  for i = 1, 3 do assert.equal(0, (part(i, 3, "p" .. i))) end
  assert.equal(0, (sweep { "--s-q", S_Q, "--out", folder .. "whole" }))
  assert.equal(0, (part(1, 4, "q1")))
  assert.equal(0, (part(3, 3, "other", { "--seed", "1" })))
  assert.equal(0, (part(3, 3, "threads", nil, { FEWHEAD_THREADS = "2" })))
end)

-- Records without what a second run has differently.
local function timeless(path)
  local list = assert(fh.record.read(assert(fh.store.find(path))))
  for _, record in ipairs(list) do record.time, record.verdict, record.run = nil, nil, nil end
  return list
end

describe("merge", function()
  it("gives what one process would have measured, but for times", function()
    local run = assert(merge.merge({ folder .. "p2", folder .. "p3", folder .. "p1" }, folder .. "merged", "x"))
    assert.same({ 7, 3, "complete" }, { run.head.cells, run.head.parts, run.head.state })
    assert.same(timeless(folder .. "whole"), timeless(folder .. "merged"))
  end)

  it("names a part that is missing, or there twice, and writes nothing", function()
    assert.equal("part 2/3: missing", problems { "p1", "p3" })
    assert.equal("part 2/3: double: p2 and p2/latest", problems { "p1", "p2", "p2/latest", "p3" })
    assert.is_nil(io.open(folder .. "no"))
  end)

  it("names what is mixed", function()
    assert.equal("q1: mixed: parts: 4, in p1 3", problems { "p1", "p2", "p3", "q1" })
    assert.equal("other: mixed: cells of the sweep: HASH, in p1 HASH", problems { "p1", "p2", "other" })
    assert.equal("threads: mixed: threads: 1, here 2, against p1", problems { "p1", "p2", "threads" })
    assert.equal("whole: no part of a sweep, it was run without --shard", problems { "p1", "p2", "p3", "whole" })
    assert.equal("none: no run in it, wanted a folder with records.jsonl or latest in it", problems { "none" })
  end)

  it("names a part that is not whole", function()
    local command = "cd %s && cp -rL p2 torn && cd torn/latest && head -n -1 records.jsonl >x && mv x records.jsonl"
    helper.shell(command:format(folder))
    assert.matches("^part 2/3: 1 of %d cells are missing: torn$", problems { "p1", "torn", "p3" })
  end)

  it("is a command, with a line for each problem and status 1", function()
    local status, out, err = process.run { "./fewhead", "merge", "--out", folder .. "m", folder .. "p1" }
    assert.same({ 1, "", "merge: part 2/3: missing\nmerge: part 3/3: missing\n" }, { status, out, err })
    status, out = process.run { "./fewhead", "merge", "--out", folder .. "m", folder .. "p1", folder .. "p2", folder .. "p3" }
    assert.equal(0, status)
    assert.matches("^3 parts, 7 cells: " .. folder:gsub("%p", "%%%0") .. "m/%d+T%d+Z%-gate_sweep\n$", out)
  end)
end)

describe("a part", function()
  it("without cells says so and is no error", function()
    local i
    for n = 1, 40 do -- the cells of a sweep of one cell fall into one part of 40
      local status, out = sweep { "--s-q", "1", "--shard", n .. "/40", "--dry-run" }
      assert.equal(0, status)
      if out:find("^0 cells") or out:find("\n0 cells") then i = n break end
    end
    local status, out = sweep { "--s-q", "1", "--shard", i .. "/40", "--out", folder .. "empty" }
    assert.same({ 0, ("part %d/40: 0 cells\n"):format(i) }, { status, out })
  end)

  it("is refused where it is none", function()
    for _, text in ipairs { "0/3", "4/3", "-1/3", "1/0", "3", "a/b" } do
      local status, out, err = sweep { "--s-q", "1", "--shard", text }
      local wanted = 'gate_sweep: --shard: got "%s", wanted "I/N" with I in 1 .. N (--help lists the options)\n'
      assert.same({ 2, "", wanted:format(text) }, { status, out, err })
    end
    assert.equal('sweep: shard: got "4/3", wanted "I/N" with I in 1 .. N',
      helper.refusal(function() local s = fh.sweep { s_q = 1, shard = "4/3" } return s end))
    assert.equal(0, (sweep { "--s-q", "1", "--shard", "1/1", "--out", folder .. "one" }))
  end)
end)

describe("experiments/cluster/sweep.sbatch", function()
  -- The parts that an array's tasks run, sorted; or the first message.
  local function parts(array, env)
    local out = folder .. "array"
    if not (env and env.KEEP) then process.remove(out) end
    local list = {}
    for _, id in ipairs(array.ids) do
      local task = { SLURM_ARRAY_TASK_ID = tostring(id), SLURM_ARRAY_TASK_MIN = tostring(array.ids[1]),
        SLURM_ARRAY_TASK_COUNT = tostring(#array.ids), SLURM_ARRAY_TASK_STEP = tostring(array.step or 1),
        SLURM_SUBMIT_DIR = process.root, FEWHEAD = "echo" }
      for name, value in pairs(env or {}) do task[name] = value end
      local status, text, err = process.run({ "experiments/cluster/sweep.sbatch", out, "--s-q", "1" }, { env = task })
      if status ~= 0 then return (err:gsub(folder:gsub("%p", "%%%0"), "")) end
      list[#list + 1] = text:match("%-%-shard (%S+) ")
      assert.is_truthy(text:find("--resume --s-q 1\n", 1, true), text)
    end
    return table.concat(list, " ")
  end

  it("runs each part once, whatever the array's ids", function()
    assert.equal("1/3 2/3 3/3", parts { ids = { 0, 1, 2 } })
    assert.equal("1/3 2/3 3/3", parts { ids = { 1, 2, 3 } })
    assert.equal("1/3 2/3 3/3", parts { ids = { 5, 6, 7 } })
    assert.equal("1/4 2/4 3/4 4/4", parts { ids = { 0, 2, 4, 6 }, step = 2 })
    assert.equal("1/10 2/10 3/10 4/10 5/10 6/10 7/10 8/10 9/10 10/10", parts { ids = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 } })
  end)

  it("goes beyond the site's largest array by an offset", function()
    assert.equal("1/5 2/5 3/5", parts({ ids = { 0, 1, 2 } }, { FEWHEAD_SHARDS = "5" }))
    assert.equal("4/5 5/5", parts({ ids = { 0, 1 } }, { FEWHEAD_SHARDS = "5", FEWHEAD_OFFSET = "3", KEEP = "1" }))
    assert.equal("sweep.sbatch: FEWHEAD_OFFSET without FEWHEAD_SHARDS: wanted the number of all parts\n",
      parts({ ids = { 0, 1 } }, { FEWHEAD_OFFSET = "3" }))
  end)

  it("runs some parts again by the ids they had", function()
    assert.equal("1/3 2/3 3/3", parts { ids = { 0, 1, 2 } })
    assert.equal("2/3 3/3", parts({ ids = { 1, 2 } }, { FEWHEAD_BASE = "0", KEEP = "1" }))
  end)

  it("refuses another number of parts, and ids that are no part", function()
    assert.equal("1/3 2/3 3/3", parts { ids = { 0, 1, 2 } })
    assert.equal("sweep.sbatch: FEWHEAD_SHARDS: got 4, but array/shards says 3\n",
      parts({ ids = { 0 } }, { FEWHEAD_SHARDS = "4", KEEP = "1" }))
    assert.equal("sweep.sbatch: array id 3 is part 4, wanted one in 1 .. 3; set FEWHEAD_BASE\n",
      parts({ ids = { 3 } }, { FEWHEAD_BASE = "0", KEEP = "1" }))
  end)
end)
