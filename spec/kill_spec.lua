-- A sweep that is killed (SIGKILL) at random moments, and resumed: nothing is lost, nothing is measured twice. `make test-kill`
-- takes 200 moments.
local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local KILLS = tonumber(os.getenv("FEWHEAD_KILLS") or "") or 5
local CELLS, PATHS = 60, 4
local SECONDS = 2.5 -- about as long as the sweep takes: the moments lie within

local folder = helper.folder()
teardown(function() process.remove(folder) end)

local command = "FEWHEAD_DEVICE=cpu FEWHEAD_THREADS=1 ./fewhead run experiments/gate_sweep.lua --s-q 1:30:1 --heads 4,8 "
  .. "--s-kv 64 --topk 16 --pattern uniform --layout contiguous --min-samples 1 --seconds 0 --resume --out %sruns"
command = command:format(folder)

-- The ids of a file's whole lines, and how often each stands there; the lines.
local function ids_in(path)
  local counts, lines = {}, {}
  local file = io.open(path, "rb")
  local text = file and file:read("*a") or ""
  if file then file:close() end
  for line in text:gmatch("([^\n]*)\n") do
    local record = assert(json.decode(line))
    counts[record.cell.id] = (counts[record.cell.id] or 0) + 1
    lines[line] = true
  end
  return counts, lines
end

local function kill_after(seconds)
  local line = "cd %s. && { %s >/dev/null 2>&1 & p=$!; sleep %.3f; kill -KILL $p; wait $p; }"
  helper.shell(line:format(helper.root, command, seconds))
end

describe("a sweep that is killed", function()
  it(("at %d random moments keeps every whole cell, and measures none twice"):format(KILLS), function()
    local seed = tonumber(os.getenv("FEWHEAD_SEED") or "") or os.time()
    math.randomseed(seed)
    local kept, lines, resumed = {}, {}, 0
    for n = 1, KILLS do
      kill_after(math.random() * SECONDS)
      local path = fh.store.find(folder .. "runs")
      local counts, now = ids_in(path or "/none")
      local where = ("kill %d of seed %d"):format(n, seed)
      for id, count in pairs(kept) do -- nothing that was whole is lost
        if count == PATHS then assert.equal(PATHS, counts[id], where) end
      end
      for line in pairs(lines) do assert.is_true(now[line], where) end -- nor measured again
      local whole = 0
      lines = {}
      for id, count in pairs(counts) do
        assert.is_true(count <= PATHS, where)
        if count == PATHS then whole = whole + 1 end
        kept[id] = count
      end
      for line in pairs(now) do
        if counts[json.decode(line).cell.id] == PATHS then lines[line] = true end
      end
      resumed = math.max(resumed, whole)
      if whole == CELLS then -- begin anew, so that later moments meet a sweep that runs
        helper.shell(("rm -rf %sruns"):format(folder))
        kept, lines = {}, {}
      end
    end
    assert.is_true(resumed > 0, "no moment lay within the sweep")
    local out, status = helper.shell(("cd %s. && %s"):format(helper.root, command))
    assert.is_truthy(status == 0 or status == 1, out) -- a sweep of several head counts has no one gate
    local measured, reused = out:match("\nmeasured (%d+), reused (%d+)\n")
    assert.equal(CELLS, tonumber(measured) + tonumber(reused))
    local counts, now = ids_in(assert(fh.store.find(folder .. "runs")))
    local cells = 0
    for id, count in pairs(counts) do
      assert.equal(PATHS, count, id)
      cells = cells + 1
    end
    assert.equal(CELLS, cells)
    for line in pairs(lines) do assert.is_true(now[line]) end
    assert.equal("1", (helper.shell(("ls -d %sruns/2* | wc -l"):format(folder)))) -- all in one run
  end)
end)
