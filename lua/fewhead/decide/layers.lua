--- Layers: one chunk through all attention layers of a model, path against path: what a path is worth to an engine, the building
-- of its plans included.
--
--     local result = assert(fh.layers { preset = "v4.1-flash tp8", s_q = 16 })
--     print(result)                                        -- ms a chunk by path, what that is to padded, the plans' share
--     print(result:record("packed").time.median_us)
--
-- How the layers lie in memory and share lists and plans stands in fewhead.chunk.
local args = require "fewhead.base.arguments"
local case = require "fewhead.case.case"
local chunks = require "fewhead.measure.chunk"
local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local option = require "fewhead.base.option"
local path_table = require "fewhead.device.path"
local preset = require "fewhead.case.preset"
local records = require "fewhead.record.record"
local tables = require "fewhead.base.table"
local tags = require "fewhead.record.tags"
local timing = require "fewhead.measure.timing"

local given = args.given

local M = {}

-- Rows of a chunk where none are given: what runs in seconds on a CPU, and vLLM's default chunk on a GPU.
local ROWS = { cpu = 16, cuda = 8192 }
-- What the oracle computes for all lists together, useful flops of a CPU: about a second.
local REFERENCE_FLOPS = 1e9

-- What may be named: no providers, whose calls need not be what a graph can hold.
local NAMES = { "native", "auto", unpack(path_table.candidates()) }

-- The row of a case's option with other fields.
local function of_case(key, changes) return option.like(case.rows.by_key[key], changes) end

-- The options of fewhead.timing that have effect here: layers are timed hot, and one arm twice that is chosen here.
local TIMING = {}
for _, row in ipairs(timing.rows.list) do
  if row.key ~= "cold" and row.key ~= "noise" and row.key ~= "stopped" then TIMING[#TIMING + 1] = row end
end

--- The options of fh.layers (fewhead.base.option).
M.rows = option.rows("layers", {
  of_case("preset", { axis = false, default = preset.default }),
  of_case("s_q", { axis = false, lo = 1, [3] = "rows of the chunk (default 16 on a CPU, 8192 on a GPU)" }),
  of_case("prior", { [2] = "INTEGER", axis = false,
    [3] = "rows of the prompt before it (default: the prompt is 8192 rows long and ends with it)" }),
  of_case("pattern", { axis = false, [3] = "how lists are drawn", default = "local", choices = { "local", "csa" } }),
  of_case("keep", { axis = false, [3] = "share of picks that local keeps from row to row (default 0.9)",
    with = { pattern = { "local" } } }),
  of_case("layout", { axis = false, default = "vllm" }), of_case("seed", { axis = false, default = 0 }),
  { "--buffers", "INTEGER", "how many layers have q, KV and outputs of their own at most", lo = 1 },
  { "paths", "TABLE", "what is compared, all with the first" },
  { "device", "ANY", "default device.default()" }, { "run", "TABLE", "a header of fh.run" }, tags.row,
  unpack(TIMING),
})
local CHUNK = { "preset", "s_q", "prior", "pattern", "keep", "layout", "seed", "buffers" }

-- One result for all lists: the first that is not a pass speaks for them.
local function merge(results)
  local all = { status = "pass", against = results[1].against, compared = 0, mean_abs = 0, max_abs = 0 }
  for i, r in ipairs(results) do
    if r.status ~= "pass" and all.status == "pass" then
      all.status, all.worst, all.reason = r.status, r.worst, ("list %d: %s"):format(i, r.reason)
    end
    if r.compared > 0 then
      all.compared, all.mean_abs = all.compared + r.compared, all.mean_abs + r.mean_abs * r.compared
      all.max_abs = math.max(all.max_abs, r.max_abs)
    end
    if r.sampled then all.sampled = (all.sampled or 0) + r.sampled end
  end
  all.mean_abs = all.mean_abs / math.max(1, all.compared)
  return all
end

-- ---- What is printed --------------------------------------------------------------------------------------------------------

local Layers = { __name = "layers" }
Layers.__index = Layers
M.class = Layers -- a later room gives it further methods

--- The record of a path, nil when it was not asked for.
function Layers:record(path)
  for _, record in ipairs(self.records) do
    if record.path == path then return record end
  end
end

local function kind_text(kind)
  local text = ("%d list%s for %d layer%s each, %s: topk %d, %d KV rows"):format(kind.lists, kind.lists > 1 and "s" or "",
    kind.layers, kind.layers > 1 and "s" or "", kind.ratio == 0 and "window only" or "ratio " .. kind.ratio, kind.topk, kind.s_kv)
  if not kind.dedup then return text end
  return ("%s; union of a group: %.0f rows, %.1f keys a row"):format(text, kind.union_per_group, kind.dedup)
end

local COLUMNS = {
  { key = "path", align = "left" }, { key = "ms", title = "ms a chunk", format = "%.2f" },
  { key = "spread", title = "p05 .. p95" }, { key = "ratio", format = "%.2fx" }, { key = "verdict", align = "left" },
  { key = "plans", title = "of it plans", format = "%.2f" },
  { key = "share", format = function(share) return ("%.1f %%"):format(100 * share) end },
  { key = "useful", title = "useful GFLOP/s", format = "%.0f" }, { key = "parity", align = "left" },
  { key = "max_abs", title = "max error", format = "%.1e" }, { key = "kernel", align = "left" },
}

local function row_of(record)
  local time, verdict, plans = record.time, record.verdict or {}, record.plans or {}
  return {
    path = record.path, kernel = record.kernel, parity = record.parity.status, max_abs = record.parity.max_abs,
    ms = time and time.median_us / 1e3, ratio = verdict.ratio, verdict = verdict.verdict,
    spread = time and ("%.2f .. %.2f"):format(time.p05_us / 1e3, time.p95_us / 1e3),
    plans = plans.us and plans.us / 1e3, share = plans.share,
    useful = time and record.work.useful_flops / (time.median_us * 1e3),
  }
end

function Layers:__tostring()
  local c, rows = self.case, {}
  local lines = {
    ("%s on %s: %d rows after %d through %d attention layers, lists %s, layout %s"):format(c.preset,
      self.run.device, c.s_q, c.prior, c.layers, c.keep and ("%s (%g kept)"):format(c.pattern, c.keep) or c.pattern, c.layout),
  }
  for _, kind in ipairs(c.kinds) do lines[#lines + 1] = "  " .. kind_text(kind) end
  for i, record in ipairs(self.records) do rows[i] = row_of(record) end
  lines[#lines + 1] = tables.text(rows, COLUMNS)
  lines[#lines + 1] = ("all %d layers%s; plans, one a list, are in the times; ratio: %s over the path"):format(c.layers,
    self.run.kind == "cuda" and " in one launch" or "", self.records[1].path)
  for _, record in ipairs(self.records) do
    if record.parity.reason then lines[#lines + 1] = ("%s: %s"):format(record.path, record.parity.reason) end
    local plans = record.path == "auto" and record.plans
    if plans then lines[#lines + 1] = ("auto packs %d of the plans' %d groups"):format(plans.packed, plans.groups) end
  end
  if c.buffers < c.layers then
    lines[#lines + 1] = ("layers take turns on q, KV and outputs of %d"):format(c.buffers)
  end
  if self.noise then
    lines[#lines + 1] = ("%d samples; noise floor %.1f %% (%s against itself)"):format(self.noise.n, self.noise.floor * 100,
      self.noise.arm)
  end
  return table.concat(lines, "\n")
end

-- ---- The comparison ---------------------------------------------------------------------------------------------------------

-- Parity of each path, and the arms that passed: lists.
local function check_all(chunk, paths, wants)
  local results, arms = {}, {}
  for i, path in ipairs(paths) do
    local run, err = chunk:runner(path)
    local each
    if run then each, err = chunk:check(path, run, wants) end
    results[i] = each and merge(each)
      or { status = "invalid", against = "reference", compared = 0, reason = ("%s did not run: %s"):format(path, err) }
    if results[i].status == "pass" then
      arms[#arms + 1] = { name = path, run = run }
      results[i].kernel = chunk:kernels(path)
    end
  end
  return results, arms
end

-- Times of the arms, and of "plans" where one of them builds plans.
local function time_all(chunk, arms, how)
  local err
  how.noise = arms[#arms].name
  for _, arm in ipairs(arms) do
    if chunk:has_plans(arm.name) then
      arms[#arms + 1] = { name = "plans" }
      arms[#arms].run, err = chunk:runner("plans")
      if not arms[#arms].run then return nil, "layers: plans: " .. err end
      break
    end
  end
  if not how.stopwatch then
    how.stopwatch, err = timing.stopwatch(chunk.device)
    if not how.stopwatch then return nil, "layers: " .. err end
  end
  local times
  times, err = timing.measure(arms, how)
  return times, err
end

-- What was run, for records.
local function describe(chunk, o)
  local first = chunk.layers[1].problem.case
  return {
    preset = o.preset, layers = #chunk.layers, lists = #chunk.lists, kinds = chunk:kinds(), buffers = #chunk.buffers,
    s_q = first.s_q, prior = first:describe().prior, h_q = first.h_q, h_pad = first.h_pad, d_qk = first.d_qk, d_v = first.d_v,
    pattern = o.pattern, keep = chunk.lists[#chunk.lists].case.keep, layout = o.layout, seed = o.seed,
  }
end

-- The whole of M.run on a chunk that is there: an object | nil, err.
local function measure(chunk, o, paths, how, run)
  local wants, err = chunk:answers(REFERENCE_FLOPS)
  if not wants then return nil, err end
  local results, arms = check_all(chunk, paths, wants)
  for _, want in ipairs(wants) do want.free() end
  local times = {}
  if #arms > 0 then times, err = time_all(chunk, arms, how) end
  if not times then return nil, err end

  local useful = 0
  for _, layer in ipairs(chunk.layers) do useful = useful + layer.problem.useful_flops end
  local self = setmetatable({ case = describe(chunk, o), records = {}, noise = times.noise, run = run }, Layers)
  for i, path in ipairs(paths) do
    local time, plans, timeline = times[path], nil, nil
    if time and chunk:has_plans(path) then
      local us, packed, groups = times.plans.median_us, chunk:packed_groups(path)
      if not packed then return nil, groups end
      plans = { built = #chunk.lists, us = us, share = us / time.median_us, packed = packed, groups = groups }
    end
    if time then
      timeline, err = chunk:timeline(path, how.stopwatch)
      if not timeline then return nil, err end
    end
    self.records[i] = records.new {
      path = path, case = self.case, parity = results[i], time = time,
      work = { rows = #chunk.layers * self.case.s_q, useful_flops = useful, kernel = results[i].kernel },
      verdict = compare.verdict(time, times[paths[1]], times.noise, paths[1]), run = run,
      more = { plans = plans, timeline = timeline },
    }
  end
  return self
end

--- fh.layers { preset =, s_q =, .. }: check one chunk through a model's layers on each path, then time it. Options:
--   preset         "v4.1-flash tp8": which layers, lists and heads (fh.preset)
--   s_q            rows of the chunk (16 on a CPU, 8192 on a GPU)
--   prior          rows of the prompt before it; left out, as fh.case has it: an 8192-row prompt that ends with the chunk
--   pattern        "local" (default; keep = 0.9 of a row's picks are those of the row before) or "csa" (drawn afresh)
--   layout, seed   "vllm" and 0
--   paths          what is compared, all with the first. Default: those that auto chooses among and the device has, and auto.
--                  auto is given each list's plan, built for it, whatever it then packs
--   buffers        how many layers have q, KV and outputs of their own at most (all that fit in half of the device's memory)
--   tags           { name = value }: words of your own that the records carry (fewhead.record.tags)
--   device, run    device.default() and a new header; and options of fh.timing
-- Parity is that of the last layer of each list, or of some of its rows, in the outputs of the very run that is timed. Returns an
-- object with .records (fh.record; their case is this chunk, and plans = { built =, us =, share = of the time, packed =, groups =
-- } stands beside the other fields where a path works on plans, and timeline = what each step took alone, Chunk:timeline),
-- .case, .noise, :record(path) and tostring; nil, message when it
-- cannot run.
function M.run(o)
  o = option.table("layers", o, M.rows)
  local dev, chosen = device.check("layers: device", o.device or device.default()), {}
  for _, key in ipairs(CHUNK) do chosen[key] = o[key] end
  chosen.s_q = given(o.s_q, ROWS[dev.kind])
  local h_q, paths = preset.get(chosen.preset).h_q, o.paths
  if paths == nil then
    paths = {}
    for _, path in ipairs(path_table.candidates()) do
      if dev:has_path(path, h_q) then paths[#paths + 1] = path end
    end
    paths[#paths + 1] = "auto"
  end
  for i, path in ipairs(paths) do args.enum(("layers: paths[%d]"):format(i), path, NAMES) end
  paths = compare.expand("layers: paths", paths, dev, 2)
  local how = {}
  for _, row in ipairs(TIMING) do how[row.key] = o[row.key] end

  local chunk, err = chunks.build(dev, chosen)
  if not chunk then return nil, err end
  local result
  result, err = measure(chunk, chosen, paths, how, o.run or tags.into(require("fewhead.record.run").header(dev), o.tags))
  chunk:free()
  return result, err
end

return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
