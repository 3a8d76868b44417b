--- Bench: cells measured one after another on one device, parity before time.
--
--     local opt = bench.options("bench_x", "Times of this and that.", "64:1024:*2"):read(arg)
--     local b = bench.open("bench_x", opt, "x")
--     b:measure({ name = "csa, ratio 4", options = { s_q = 64, pattern = "csa", ratio = 4 } }, { "padded", "gather" })
--     return b:finish("Title", { "text", { rows, columns } })         -- prints and writes them (fewhead.cli.experiment)
local case = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local experiment = require "fewhead.cli.experiment"
local options = require "fewhead.cli.options"
local provider = require "fewhead.device.provider"
local path_table = require "fewhead.device.path"
local plan = require "fewhead.device.plan"
local tables = require "fewhead.base.table"

local M = {}

-- Rows of a chunk that are compared with the reference, spread evenly and over all places of a group: paths treat rows alike.
local PARITY_ROWS = 256
-- Beyond so many rows what lies around the outputs is not read any more: on a GPU that takes longer than all else, and the
-- conformance grid and the smaller chunks have shown it.
local GUARDED_ROWS = 1024
-- A cell is stopped after this long once each path has 6 samples: slow devices.
local CELL_SECONDS = 5

local TERA = 1e12

local Bench = { __name = "bench" }
Bench.__index = Bench

--- The options that benches share, as fh.options makes them. about: what the bench shows; s_q: the default of --s-q.
function M.options(name, about, s_q)
  return options {
    name = name, about = about,
    options = {
      "provider", "device", { "s_q", default = s_q, hi = 131072 },
      { "--quick", nil, "the first kind of cells alone" },
      { "--samples", "INTEGER", "launches timed of each path and cell", default = 30, lo = 6 },
      "out", "name", "tags",
    },
  }
end

--- Open the device and the folder that the options name, or end the script (fewhead.cli.experiment). On a GPU FlashMLA takes part
-- where it is installed, and the plug-ins of --provider everywhere; .flashmla says which FlashMLA, or why there is none.
-- name: the script's; evidence: what the run's files are called in results/DEVICE. .experiment has records and failures.
function M.open(name, opt, evidence)
  local e = experiment.open(name, opt, { evidence = evidence })
  local self = setmetatable({
    experiment = e, device = e.device, opt = opt, providers = { unpack(opt.provider or {}) }, tables = {},
  }, Bench)
  if not e.on_cpu then
    local flashmla, reason = provider.flashmla()
    self.flashmla = flashmla and tostring(flashmla) or reason
    table.insert(self.providers, 1, flashmla)
  end
  return self
end

-- A bench cannot go on after what is wrong here.
local function need(cell, value, err)
  if not value then error(("%s, s_q %d: %s"):format(cell.name, cell.options.s_q, err), 0) end
  return value
end

-- What neighbours share in a problem's lists, and how many of its groups a call with path auto packs.
local function sharing(cell, problem)
  local made = need(cell, plan.build(problem, { path = "auto" }))
  local stats = made:stats()
  local groups = made.groups
  local found = {
    group = made.group, groups = groups, entries = stats.entries, keys = stats.keys, dedup = stats.dedup,
    union_per_group = groups > 0 and stats.entries / groups or 0, auto_packs = groups - made:unpacked(),
  }
  made:free()
  return found
end

-- 1 for the paths that pack all groups, 0 for the others.
local SHARE = {}
for _, name in ipairs(path_table.candidates()) do SHARE[name] = path_table.get(name).wants_plan and 1 or 0 end

-- The share of groups that auto packed: it need not have made a plan, and where it has, the plan says. ran: the path that ran, or
-- several with + between them.
local function share_packed(ran, shared)
  if not shared then return 0 end
  return SHARE[ran] or shared.auto_packs / math.max(1, shared.groups)
end

-- Whether a device has a path that works on a plan, with so many heads.
local function packs(dev, h_q)
  for _, name in ipairs(path_table.planned()) do
    if dev:has_path(name, h_q) then return true end
  end
  return false
end

-- The body of Bench:measure; {} once Ctrl-C was pressed.
local measure

--- Measure a cell { name =, options = of fh.case } on paths (those that the device has) and providers. Records gain .cell, the
-- name, and, where the device packs, .plan = { group, groups, entries, keys, dedup, union_per_group, auto_packs = groups that
-- auto packs }. Returns a row for each, for tables: cell, s_q, h_q, path, kernel, parity, max_abs, union, dedup; median, p05,
-- p95, plan in us; ratio and verdict to the first path; useful and executed TFLOP/s, kv_tb = TB/s of the KV rows of valid keys;
-- packs, auto's share of groups. Ctrl-C drops the cell at hand: from then on there are no rows.
function Bench:measure(cell, paths)
  if self.experiment.interrupted then return {} end
  return self.experiment:during(function(pressed) return measure(self, cell, paths, pressed) end)
end

function measure(self, cell, paths, pressed)
  local e, known = self.experiment, {}
  for _, path in ipairs(paths) do
    if self.device:has_path(path, cell.options.heads) then known[#known + 1] = path end
  end
  for _, guest in ipairs(self.providers) do known[#known + 1] = guest end
  e.line:step(("%s, s_q %d"):format(cell.name, cell.options.s_q))
  local described = case(cell.options)
  local problem = need(cell, described:problem(self.device))
  local shared = packs(self.device, described.h_q) and sharing(cell, problem) or nil
  local result, err = compare(described, known, {
    interrupted = pressed,
    device = self.device, run = e.run, sample = PARITY_ROWS, canaries = described.s_q <= GUARDED_ROWS,
    min_samples = self.opt.samples, max_samples = self.opt.samples, max_seconds = CELL_SECONDS,
  })
  if pressed() then
    described:free()
    return {}
  end
  need(cell, result, err)
  local rows = {}
  for i, record in ipairs(result.records) do
    local time, work, verdict = record.time, record.work, record.verdict or {}
    local row = {
      cell = cell.name, s_q = described.s_q, h_q = described.h_q, path = record.path,
      kernel = record.kernel, parity = record.parity.status, max_abs = record.parity.max_abs,
      union = shared and shared.union_per_group,
      dedup = shared and shared.dedup, ratio = verdict.ratio, verdict = verdict.verdict,
    }
    if time then
      local seconds = time.median_us / 1e6
      row.median, row.p05, row.p95, row.plan = time.median_us, time.p05_us, time.p95_us, time.plan_us
      row.useful = problem.useful_flops / seconds / TERA
      row.executed = work.executed_flops and work.executed_flops / seconds / TERA -- not known of auto on a GPU
      row.kv_tb = problem.valid_keys * described.d_qk * 2 / seconds / TERA
      if record.path == "auto" then row.packs = share_packed(work.path, shared) end
    end
    record.cell, record.plan = cell.name, shared
    rows[i] = row
  end
  e:add(result.records)
  described:free()
  return rows
end

-- The options of fh.case of a kind of lists at one size.
local function options_of(kind, s_q, heads)
  local o = { s_q = s_q, heads = heads, layout = "vllm", holes = 0, prior = kind.prompt and math.max(0, kind.prompt - s_q) }
  for key, value in pairs(kind.options) do o[key] = value end
  return o
end

--- Measure kinds of lists at every number of heads and rows. o: kinds, a list of { name =, options = of fh.case, prompt = rows of
-- the prompt that the chunk ends, nil: the chunk is all of it }; heads and s_q, lists of numbers; paths. Cells are in vLLM's
-- layout without holes, unless a kind says so. Returns the rows of all cells, as measure() does.
function Bench:table(o)
  local rows = {}
  for _, kind in ipairs(o.kinds) do
    for _, heads in ipairs(o.heads) do
      for _, s_q in ipairs(o.s_q) do
        local found = self:measure({ name = kind.name, options = options_of(kind, s_q, heads) }, o.paths)
        for _, row in ipairs(found) do rows[#rows + 1] = row end
        self.tables[("%s, %d rows, %d heads"):format(kind.name, s_q, heads)] = found
      end
    end
  end
  return rows
end

--- auto beside padded for kinds of lists at every s_q: where table() has measured a cell those times, else measured now. o:
-- kinds, heads (one number), s_q. Returns a row a cell, for tables with M.beside_columns.
function Bench:auto_beside_padded(o)
  local rows = {}
  for _, kind in ipairs(o.kinds) do
    for _, s_q in ipairs(o.s_q) do
      local row = { cell = kind.name, s_q = s_q }
      for _, one in ipairs(self.tables[("%s, %d rows, %d heads"):format(kind.name, s_q, o.heads)]
        or self:table { kinds = { kind }, heads = { o.heads }, s_q = { s_q }, paths = { "padded", "auto" } }) do
        if one.path == "padded" then row.padded = one.median end
        if one.path == "auto" then
          row.auto, row.ratio, row.verdict, row.packs, row.parity = one.median, one.ratio, one.verdict, one.packs, one.parity
        end
      end
      if not self.experiment.interrupted then rows[#rows + 1] = row end
    end
  end
  return rows
end

--- What all these tables are.
function Bench:legend()
  local text = ("Medians of %d launches by the device's own timer, paths in turns, hot caches; every path was compared with the "
    .. "reference on up to %d rows before it was timed. useful: TFLOP/s of valid keys and real heads; executed: of all that the "
    .. "kernel multiplies, padding included, as far as the host knows."):format(self.opt.samples, PARITY_ROWS)
  return self.flashmla and ("%s FlashMLA: %s."):format(text, (self.flashmla:gsub("%.$", ""))) or text
end

--- Columns that tables of these rows have, by key.
-- @value columns
M.columns = {
  cell = { key = "cell", title = "lists", align = "left" }, s_q = { key = "s_q" }, h_q = { key = "h_q" },
  path = { key = "path", align = "left" }, union = { key = "union", title = "union", format = "%.0f" },
  dedup = { key = "dedup", format = "%.2f" }, median = { key = "median", title = "median us", format = "%.1f" },
  p05 = { key = "p05", format = "%.1f" }, p95 = { key = "p95", format = "%.1f" },
  plan = { key = "plan", title = "plan us", format = "%.1f" },
  ratio = { key = "ratio", title = "padded / path", format = "%.2f" }, verdict = { key = "verdict", align = "left" },
  useful = { key = "useful", title = "useful TFLOP/s", format = "%.3g" }, executed = { key = "executed", format = "%.3g" },
  kv_tb = { key = "kv_tb", title = "KV TB/s", format = "%.2f" }, parity = { key = "parity", align = "left" },
  max_abs = { key = "max_abs", title = "max error", format = "%.1e" }, kernel = { key = "kernel", align = "left" },
}

--- Columns of auto_beside_padded's rows.
-- @value beside_columns
M.beside_columns = {
  { key = "cell", title = "lists", align = "left" }, { key = "s_q" }, { key = "padded", title = "padded us", format = "%.1f" },
  { key = "auto", title = "auto us", format = "%.1f" }, { key = "ratio", title = "padded / auto", format = "%.2f" },
  { key = "verdict", title = "auto is", align = "left" },
  { key = "packs", title = "groups packed", format = function(share) return ("%.0f %%"):format(100 * share) end },
  { key = "parity", align = "left" },
}

--- Those named, in order: bench.pick { "cell", "s_q", "median" }.
function M.pick(names)
  local list = {}
  for i, name in ipairs(names) do list[i] = M.columns[name] or error("bench.pick: no column " .. tostring(name), 2) end
  return list
end

-- Parts as text: a string is itself, { rows, columns } a table made by `make`.
local function text_of(parts, make)
  local list = {}
  for i, part in ipairs(parts) do
    local following = parts[i + 1]
    local is_title = type(part) == "string" and part:find("^## ") and type(following) == "table"
    if type(part) == "table" then
      if #part[1] > 0 then list[#list + 1] = make(part[1], part[2]):gsub("\n$", "") end
    elseif not is_title or #following[1] > 0 then list[#list + 1] = part end
  end
  return list
end

--- Print the parts (strings and { rows, columns }) and write them with the records; "## TITLE" before a table without rows is
-- left out with it. Returns the exit status: 1 when something failed parity, 130 after Ctrl-C.
function Bench:finish(title, parts)
  local e = self.experiment
  if e.interrupted then parts = { ("interrupted: %d records"):format(#e.records), unpack(parts) } end
  return e:finish {
    title = ("%s on %s"):format(title, e.run.device), text = table.concat(text_of(parts, tables.text), "\n\n"),
    markdown = table.concat(text_of(parts, tables.markdown), "\n\n"),
  }
end

return M
