--- Serve: an A/B of attention paths end to end: the same workload through a model of a chunked-prefill engine, one arm
-- after the other, with the attention time of every step by that arm's choice of path.
--
--     local ab = fh.serve { workload = "C16x8kx48", engine = "h20x8-tp8", arms = { "padded", "gate 2048" } }
--     print(ab)                                          -- a table, published figures beside it
--     print(ab.rows[2].change.total_tok_s.mean)          --> 0.074: 7.4 % more tokens a second than the first arm
--
-- Arms: "padded"; "gate N": native heads from s_q N up (N = 2048 is the published rule); "native": always; "auto",
-- "gather", "packed": that path always. Or { name =, path =, gate = a gate of fh.gate }. What a step takes besides
-- attention is the engine's budget and the same in all arms. The model is deterministic: the order in which arms run
-- changes nothing, and repetitions differ only by the seed of arrivals and of speculative decoding, which both arms
-- share.
local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local tables = require "fewhead.base.table"
local engines = require "fewhead.serve.engine_preset"
local gates = require "fewhead.decide.gate"
local metrics = require "fewhead.serve.metrics"
local published = require "fewhead.serve.published"
local scheduler = require "fewhead.serve.scheduler"
local workloads = require "fewhead.serve.workload"

local M = {}

-- Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the list the normal distribution's.
local T95 = { 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262 }
local NORMAL95 = 1.96

--- Repetitions where chance has a part: draft tokens are accepted at random.
M.repetitions = 5

-- ---- Arms -----------------------------------------------------------------------------------------------------------

local function has(list, value)
  for _, one in ipairs(list) do
    if one == value then return true end
  end
  return false
end

local function arm_of(what, arm, engine, level)
  if type(arm) == "table" then
    local o = args.options(what, arm, { "name", "path", "gate" }, level + 1)
    args.string(what .. ".name", o.name, level + 1)
    return { name = o.name, path = o.path or "native", gate = o.gate }
  end
  local min_sq = type(arm) == "string" and arm:match("^gate (%d+)$")
  if min_sq then return { name = arm, path = "native", gate = gates.new { min_sq = tonumber(min_sq) } } end
  if arm == "padded" or arm == "native" then return { name = arm, path = arm } end
  if type(arm) ~= "string" or not has(engine.paths, arm) then
    error(('%s: got %s, wanted "native", "gate N" or a path that engine %s has: %s'):format(what, args.show(arm), engine.name,
      table.concat(engine.paths, ", ")), level + 1)
  end
  return { name = arm, path = arm }
end

-- ---- One run --------------------------------------------------------------------------------------------------------

-- Runs a workload with an arm. Returns metrics and counters = { calls =, rows = by path, attention_s =, rest_s =, steps
-- = }.
local function run_arm(workload, engine, arm, o, seed)
  local counters = { calls = {}, rows = {}, attention_s = 0, rest_s = 0 }
  local h_q = engine.preset.h_q
  local attention, rest, path
  local function step(chunk)
    attention, path = 0, nil
    if chunk.s_q > 0 then
      local wanted = arm.path
      if arm.gate and not arm.gate:native(h_q, chunk.s_q) then wanted = "padded" end
      attention, path = engine:attention(wanted, chunk)
    end
    rest = engine:rest_us(chunk)
    return rest + attention
  end
  local run = scheduler.run(workload, step, {
    max_num_batched_tokens = o.max_num_batched_tokens, max_num_seqs = o.max_num_seqs, max_model_len = o.max_model_len,
    max_kv_tokens = o.max_kv_tokens, draft = engine.draft, acceptance = engine.acceptance, seed = seed,
    on_step = function(chunk, us, start_us, steps)
      if path then
        counters.calls[path] = (counters.calls[path] or 0) + 1
        counters.rows[path] = (counters.rows[path] or 0) + chunk.s_q
      end
      counters.attention_s = counters.attention_s + attention / 1e6
      counters.rest_s = counters.rest_s + rest * steps / 1e6
      if o.on_step then o.on_step(arm.name, chunk, us, start_us, steps, attention) end
    end,
  })
  counters.steps = run.steps
  return metrics.of(run), counters, run
end

-- When each finished request was sent and how long its first token took, in seconds.
local function first_tokens_of(run)
  local list = {}
  for i, r in ipairs(run.requests) do list[i] = { sent_s = r.sent_us / 1e6, ttft_s = (r.first_us - r.sent_us) / 1e6 } end
  return list
end

-- ---- Differences ----------------------------------------------------------------------------------------------------

local FIGURES = { "total_tok_s", "output_tok_s", "ttft_s", "ttft_p99_s", "tpot_ms", "latency_s" }

local function seconds(ms) return ms and ms / 1e3 end

local function figures_of(m)
  return { total_tok_s = m.total_tok_s, output_tok_s = m.output_tok_s, ttft_s = seconds(m.ttft_ms.mean),
    ttft_p99_s = seconds(m.ttft_ms.p99), tpot_ms = m.tpot_ms.mean, latency_s = seconds(m.latency_ms.mean) }
end

-- Mean and the 95 % interval of the mean of paired relative changes; the interval is nil for one repetition.
local function interval(values)
  local n, sum, squares = #values, 0, 0
  if n == 0 then return nil end
  for _, v in ipairs(values) do sum = sum + v end
  local mean = sum / n
  if n == 1 then return { mean = mean } end
  for _, v in ipairs(values) do squares = squares + (v - mean) ^ 2 end
  local half = (T95[n - 1] or NORMAL95) * math.sqrt(squares / (n - 1) / n)
  return { mean = mean, lo = mean - half, hi = mean + half }
end

local function mean_of(list, key)
  local sum, n = 0, 0
  for _, f in ipairs(list) do
    if f[key] then sum, n = sum + f[key], n + 1 end
  end
  return n > 0 and sum / n or nil
end

local function changes(base, own)
  local found = {}
  for _, key in ipairs(FIGURES) do
    local values = {}
    for i, f in ipairs(own) do
      if f[key] and base[i][key] and base[i][key] ~= 0 then values[#values + 1] = f[key] / base[i][key] - 1 end
    end
    found[key] = interval(values)
  end
  return found
end

-- ---- The A/B --------------------------------------------------------------------------------------------------------

local Ab = { __name = "serving A/B" }
Ab.__index = Ab
M.class = Ab -- a later room gives it further methods

-- A row of the scheduler's options.
local function of_scheduler(key) return scheduler.rows.by_key[key] end

--- The options of fh.serve (fewhead.base.option); most of those of fh.scheduler are among them.
M.rows = option.rows("serve", {
  { "workload", "ANY", "a name, a workload or a function of the seed" }, { "engine", "ANY", "a name, or an object of fh.engine" },
  { "--arms", "LIST", "of padded, gate N, native, auto, gather, packed", kind = "TABLE" },
  { "--speedup", "NUMBER", "what if: native heads so many times as fast as padded ones", lo = 1e-6 },
  { "--tp", "INTEGER", "what if: so many cards share the heads", lo = 1 },
  { "--repetitions", "INTEGER", "seeds of speculative decoding", lo = 1, hi = 1000 },
  of_scheduler "max_num_batched_tokens", of_scheduler "max_num_seqs", of_scheduler "max_model_len", of_scheduler "max_kv_tokens",
  of_scheduler "acceptance", of_scheduler "on_step",
  { "on_run", "FUNCTION", "told which run comes next" },
})

-- The engine with another kernel or on other cards.
local function what_if(engine, o, level)
  local padded = true
  for _, arm in ipairs(o.arms or { "gate 2048" }) do padded = padded and (arm == "padded" or arm.path == "padded") end
  if o.speedup and padded then error("serve: speedup: has no effect on arm padded alone", level + 1) end
  local ok, changed = pcall(engine.what_if, engine, { speedup = o.speedup, tp = o.tp })
  if ok then return changed end
  error("serve: " .. tostring(changed):gsub("^.-%.lua:%d+: ", ""), level + 1)
end

--- Run an A/B. Options: workload (a name of fh.workload, a workload, or a function(seed) -> workload), engine (a name
-- or an object of fh.engine), arms (default { "padded", "gate 2048" }; the first is what the others are held against),
-- speedup and tp: what if (engine:what_if), refused where no arm or the engine's attention does not depend on them,
-- repetitions (default 5 where decoding is speculative or the workload a function, else 1), max_num_batched_tokens
-- (8192), max_num_seqs, max_model_len, max_kv_tokens (fh.scheduler), acceptance (instead of the engine's),
-- on_step(arm, chunk, us, start_us, steps, attention_us), on_run(arm, repetition, i, n) before run i of n. Returns { workload =,
-- engine =, rows = { { name =, figures = means of total_tok_s, output_tok_s, ttft_s, ttft_p99_s, tpot_ms, latency_s; change = {
-- [figure] = { mean =, lo =, hi = } } beside the first arm, metrics = of the first repetition, counters = its calls and rows by
-- path, first_tokens = its requests as { sent_s =, ttft_s = }, error = why it is no result }, .. } }; prints as a table.
function M.run(options)
  local o = option.table("serve", args.table("serve", options, 2), M.rows, 2)
  local engine = o.engine
  if type(engine) == "string" then engine = engines.get(engine, 3) end
  args.table("serve: engine", engine, 2)
  local make = o.workload
  if type(make) ~= "function" then
    local one = type(make) == "string" and workloads.get(make, 3) or make
    if not workloads.is(one) then
      error(("serve: workload: got %s, wanted a name, a workload or a function"):format(args.show(make)), 2)
    end
    make = function() return one end
  end
  if o.acceptance then
    if not engine.draft then error("serve: acceptance: has no effect, the engine decodes without draft tokens", 2) end
    engine = engine:with {}
    engine.acceptance = o.acceptance
  end
  if o.speedup or o.tp then engine = what_if(engine, o, 2) end
  local chance = engine.draft or type(o.workload) == "function"
  local repetitions = o.repetitions or chance and M.repetitions or 1
  local arms = {}
  for i, arm in ipairs(args.list("serve: arms", o.arms or { "padded", "gate 2048" }, 1, nil, 2)) do
    arms[i] = arm_of(("serve: arms[%d]"):format(i), arm, engine, 2)
  end

  local ab = setmetatable({ engine = engine, rows = {}, repetitions = repetitions,
    max_num_batched_tokens = o.max_num_batched_tokens }, Ab)
  local base
  for i, arm in ipairs(arms) do
    local row, list = { name = arm.name }, {}
    for seed = 1, repetitions do
      if o.on_run then o.on_run(arm.name, seed, (i - 1) * repetitions + seed, #arms * repetitions) end
      local workload = make(seed)
      ab.workload = ab.workload or workload
      local m, counters, run = run_arm(workload, engine, arm, o, seed)
      list[seed] = figures_of(m)
      if seed == 1 then row.metrics, row.counters, row.first_tokens = m, counters, first_tokens_of(run) end
    end
    local routed = 0
    for path, rows in pairs(row.counters.rows) do routed = routed + (path ~= "padded" and rows or 0) end
    if row.metrics.requests == 0 then
      row.error = ("no request finished: %s"):format(("%d failed"):format(row.metrics.failed))
    elseif arm.path ~= "padded" and routed == 0 then
      row.error = "no row was routed to native heads: this arm is the padded one"
    else
      row.figures = {}
      for _, key in ipairs(FIGURES) do row.figures[key] = mean_of(list, key) end
      base = base or list
      if i > 1 then row.change = changes(base, list) end
    end
    ab.rows[i] = row
  end
  return ab
end

--- What the noise of speculative decoding alone does to the first arm: the relative change of total tokens a second
-- when acceptance moves from `from` to `to` and nothing else does. Published runs moved that much by chance.
function Ab:acceptance_noise(from, to)
  local figures = {}
  for i, acceptance in ipairs { from, to } do
    figures[i] = M.run { workload = self.workload, engine = self.engine, arms = { "padded" }, repetitions = self.repetitions,
      max_num_batched_tokens = self.max_num_batched_tokens, acceptance = acceptance }.rows[1].figures.total_tok_s
  end
  return figures[2] / figures[1] - 1
end

-- ---- Records --------------------------------------------------------------------------------------------------------

-- The share of the rows that native heads got.
local function share(rows)
  local total, native = 0, 0
  for path, n in pairs(rows) do
    total, native = total + n, native + (path ~= "padded" and n or 0)
  end
  return total > 0 and native / total or 0
end

--- A record an arm, for a file of records: { kind = "serving", workload =, engine = names, arm =, figures =, change =,
-- counters =, error = as in the row, run = header }. header: of fh.run.
function Ab:records(header)
  local list = {}
  for i, row in ipairs(self.rows) do
    list[i] = { kind = "serving", workload = self.workload.name, engine = self.engine.name, arm = row.name,
      figures = row.figures, change = row.change, counters = row.counters, error = row.error, run = header }
  end
  return list
end

local function percent_of(format) return function(v) return format:format(100 * v) end end

-- Columns of M.record_table.
local RECORD_COLUMNS = {
  { key = "workload", align = "left" }, { key = "arm", align = "left" },
  { key = "total", title = "total tok/s", format = "%.0f" },
  { key = "total_change", title = "change", format = percent_of "%+.1f %%" },
  { key = "ttft", title = "mean TTFT s", format = "%.3f" },
  { key = "ttft_change", title = "change", format = percent_of "%+.1f %%" },
  { key = "p99", title = "p99 TTFT s", format = "%.3f" }, { key = "attention", title = "attention s", format = "%.2f" },
  { key = "native", title = "native rows", format = percent_of "%.1f %%" },
}

--- Rows and columns for fh.table of records that ab:records made, of several workloads.
function M.record_table(records)
  local rows = {}
  for i, r in ipairs(args.table("serve.record_table: records", records)) do
    local figures, change = r.figures or {}, r.change or {}
    rows[i] = { workload = r.workload, arm = r.arm, total = figures.total_tok_s, ttft = figures.ttft_s, p99 = figures.ttft_p99_s,
      total_change = change.total_tok_s and change.total_tok_s.mean, ttft_change = change.ttft_s and change.ttft_s.mean,
      attention = r.counters.attention_s, native = share(r.counters.rows) }
  end
  return rows, RECORD_COLUMNS
end

-- ---- Printing -------------------------------------------------------------------------------------------------------

local function percent(change)
  if not change then return nil end
  if change.lo then return ("%+.1f %% (%+.1f to %+.1f)"):format(100 * change.mean, 100 * change.lo, 100 * change.hi) end
  return ("%+.1f %%"):format(100 * change.mean)
end

--- Rows and columns for fh.table.text. The column `steady` is total tokens a second over the middle of the run, without
-- its start and its end (fh.metrics). The column `published` is the published total tokens a second, or the mean TTFT.
function Ab:table_rows()
  local rows, given = {}, published.figures[self.workload.name]
  for i, row in ipairs(self.rows) do
    local f, change = row.figures or {}, row.change or {}
    rows[i] = { arm = row.name, total = f.total_tok_s, output = f.output_tok_s, ttft = f.ttft_s, p99 = f.ttft_p99_s,
      tpot = f.tpot_ms, change_total = percent(change.total_tok_s), change_ttft = percent(change.ttft_s),
      attention = row.counters.attention_s, steady = row.figures and row.metrics.steady and row.metrics.steady.total_tok_s,
      native = row.error and nil or share(row.counters.rows) }
    if given and self.engine.name == "h20x8-tp8" then
      local own = row.name == "padded" and given.padded or row.name == "gate 2048" and given.native
      if own then rows[i].published_total, rows[i].published_ttft = own.total_tok_s, own.ttft_s or own.last_ttft_s end
    end
  end
  local columns = {
    { key = "arm", align = "left" }, { key = "total", title = "total tok/s", format = "%.0f" },
    { key = "published_total", title = "published", format = "%.0f" }, { key = "change_total", title = "change" },
    { key = "steady", title = "steady tok/s", format = "%.0f" },
    { key = "output", title = "output tok/s", format = "%.1f" }, { key = "ttft", title = "mean TTFT s", format = "%.3f" },
    { key = "published_ttft", title = "published s", format = "%.3f" }, { key = "change_ttft", title = "change of TTFT" },
    { key = "p99", title = "p99 s", format = "%.3f" }, { key = "tpot", title = "TPOT ms", format = "%.1f" },
    { key = "attention", title = "attention s", format = "%.2f" },
    { key = "native", title = "native rows", format = function(v) return ("%.1f %%"):format(100 * v) end },
  }
  local kept = {}
  for _, column in ipairs(columns) do
    local seen = column.key ~= "steady" and not column.key:find("^published")
    for _, row in ipairs(rows) do seen = seen or row[column.key] ~= nil end
    if seen then kept[#kept + 1] = column end
  end
  return rows, kept
end

function Ab:__tostring()
  local lines = { tostring(self.workload), tostring(self.engine),
    ("at most %d tokens a step; %d repetition%s"):format(self.max_num_batched_tokens, self.repetitions,
      self.repetitions == 1 and "" or "s"),
    "", (tables.text(self:table_rows())) }
  for _, row in ipairs(self.rows) do
    if row.error then lines[#lines + 1] = ("%s: no result: %s"):format(row.name, row.error) end
  end
  local first = self.rows[1].metrics
  if first.failed > 0 then lines[#lines + 1] = ("%d requests failed and are left out"):format(first.failed) end
  if first.ttft_ms.p99_few then
    lines[#lines + 1] = ("p99 of %d samples: fewer than %d, a guess"):format(first.ttft_ms.n, metrics.enough_for_p99)
  end
  local engine = self.engine
  if engine.rows and engine.rows > 0 and engine.outside_rows > 0 then
    lines[#lines + 1] = ("%.1f %% of the rows lie in chunks outside the measured s_q: their times are modelled"):format(
      100 * engine.outside_rows / engine.rows)
  end
  if engine.draft then
    local a = published.acceptance[1]
    lines[#lines + 1] = ("acceptance of draft tokens moving by chance from %.3f to %.3f alone: %+.1f %% total tokens a second")
      :format(a.padded, a.native, 100 * self:acceptance_noise(a.padded, a.native))
  end
  return table.concat(lines, "\n")
end

return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
