-- How fast are the library's paths beside FlashMLA and kernels of your own? Same cases and memory, parity before time.
--
--   ./fewhead run experiments/peers.lua                                       with the FlashMLA of the active Python environment
--   ./fewhead run experiments/peers.lua --provider mine=./mine.so             and a plug-in (see fewhead_provider.h)
--   ./fewhead run experiments/peers.lua --device cuda:0 --out results/DEVICE
--
-- Answer on an H200, vLLM 0.33's FlashMLA on 64 heads over the best path: 1.38 at s_q 64, 2.49 (csa) and 5.62 (local) at 8192.
--
-- Where there is no FlashMLA, a line says what was looked for, and the built-in padded path stands in. Then native heads are
-- compared with padded ones as the published few-head kernel was, beside its figures. Exit status: 0, 1 when something was wrong
-- or failed, 130 after Ctrl-C, which keeps what was measured; a case that a provider refuses is neither.
local fh = require "fewhead"

local opt = fh.options {
  name = "peers",
  about = "FlashMLA where it is found, the library's paths and plug-ins on the same cases: parity, times, ratios.",
  options = {
    "provider", "preset", "heads",
    { "s_q", "AXIS", "rows of a chunk (default 16,64 on a CPU, 64:8192:*2 on a GPU)" },
    { "pattern", "LIST", default = "csa,local" }, "layout", "seed",
    { "--published", "AXIS", "rows of the published tests (default 64,2048 on a CPU, 64,2048,8192 on a GPU)", lo = 1 },
    { "--flashmla-padding", "NAME", "whether FlashMLA's padding of heads and lists is a part of its times",
      default = "untimed", choices = { "untimed", "timed" } },
    { "--samples", "INTEGER", "runs timed of each path and cell", default = 30, lo = 6 },
    { "--seconds", "NUMBER", "time to spend on timing a cell at most, once it has 6 samples", default = 5, lo = 0 },
    "device", { "out", default = "results/local" }, "tags",
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "peers: " .. err) end
  return value
end

local dev = need(fh.cli.device(opt.device))
local on_cpu = dev.kind == "cpu"
local run = fh.tags.into(fh.run.header(dev), opt.tags)
local folder = need(fh.run.open_folder(opt.out, run))

-- ---- Who takes part -----------------------------------------------------------------------------------------------------------

-- FlashMLA as engines call it, with 64 heads at least; and where it has kernels for fewer heads, with those too.
local FLASHMLA_HEADS = 64
local padding = opt.flashmla_padding == "timed" and "timed" or nil
local flashmla, absent = fh.provider.flashmla { heads = FLASHMLA_HEADS, padding = padding }
if flashmla and not flashmla.kinds[dev.kind] then
  flashmla, absent = nil, ("FlashMLA %s does not run on %s; the built-in padded path stands in"):format(flashmla.text, dev.name)
end
local few = flashmla and fh.provider.flashmla({ padding = padding }, "flashmla-few")
if few and few.text == flashmla.text then few = nil end

-- What everything is measured against comes first.
local base = flashmla or "padded"
local paths = { flashmla or "padded" }
local function add(path) paths[#paths + 1] = path end
if flashmla then add "padded" end
for _, path in ipairs(fh.path.native()) do
  if dev:has_path(path, opt.heads or fh.preset.get(opt.preset).h_q) then add(path) end
end
add "auto"
if few then add(few) end
for _, provider in ipairs(opt.provider) do add(provider) end

local head = { absent or "FlashMLA: " .. flashmla.text }
if few then head[#head + 1] = "flashmla-few: " .. few.text end
for _, provider in ipairs(opt.provider) do head[#head + 1] = ("%s: version %s"):format(provider.name, provider.text) end
print(table.concat(head, "\n"))

-- ---- The race -----------------------------------------------------------------------------------------------------------------

local records, rows, notes, wrong = {}, {}, {}, 0

-- The reason of what did not pass, once; what is wrong rather than refused counts.
local function note(name, result)
  if result.status == "pass" then return end
  local refused = result.status == "invalid" and result.refused and not fh.ffi.paths[name]
  if not refused then wrong = wrong + 1 end
  local line = ("%s: %s"):format(name, result.reason)
  if not notes[line] then notes[#notes + 1], notes[line] = line, true end
end

local function show(record)
  local time, parity, three = record.time, record.parity, record.three_way
  local row = {
    pattern = record.case.pattern, s_q = record.case.s_q, path = record.path, provider = record.provider,
    kernel = record.kernel, parity = parity.status, max_abs = parity.max_abs,
  }
  if three then row.between, row.agreement = three.max_abs, three.verdict end
  if time then row.median, row.spread = time.median_us, ("%.1f .. %.1f"):format(time.p05_us, time.p95_us) end
  if record.verdict then row.ratio, row.verdict = record.verdict.ratio, record.verdict.verdict end
  rows[#rows + 1] = row
end

-- Whether Ctrl-C was pressed: what was measured before is kept, the cell at hand is not.
local interrupted = false

local function race(case, pressed)
  local comparison, err = fh.compare(case, paths, {
    interrupted = pressed, three_way = true,
    device = dev, run = run, min_samples = 6, max_samples = opt.samples, max_seconds = opt.seconds, rel_ci = 0,
  })
  interrupted = interrupted or pressed()
  if interrupted then return end
  need(comparison, err)
  for _, record in ipairs(comparison.records) do
    local three = record.three_way
    if three and three.verdict ~= "agree" and comparison.records[1].parity.status == "pass" then wrong = wrong + 1 end
    note(record.path, record.parity)
    show(record)
    records[#records + 1] = record
  end
end

local cells = {}
for _, pattern in ipairs(opt.pattern) do
  for _, s_q in ipairs(fh.axis.integers("--s-q", opt.s_q or (on_cpu and "16,64" or "64:8192:*2"), 1)) do
    cells[#cells + 1] = {
      preset = opt.preset, heads = opt.heads, s_q = s_q, pattern = pattern, layout = opt.layout, seed = opt.seed,
    }
  end
end
local progress = fh.progress { total = #cells }
for _, cell in ipairs(cells) do
  progress:step(("%s, s_q %d"):format(cell.pattern, cell.s_q))
  local case = need(fh.case(cell))
  fh.interrupt.during(function(pressed) race(case, pressed) end)
  case:free()
  if interrupted then break end
end

-- ---- The published figures ----------------------------------------------------------------------------------------------------

-- vLLM PR 57673, 8 of 64 heads at topk 640 against padding to 64: q and out are views of the step's 64-head buffers, out is
-- written in place, and 512 of the 640 entries of a list count.
local PUBLISHED = { mean_abs = 3.4e-5, max_abs = 3.91e-3 }

local figures = {}

-- What the oracle computes of a case, about half a second on two cores; beyond it rows are sampled.
local REFERENCE_FLOPS = 1e9

-- Paths against an answer; the check includes that nothing outside the real heads' results was written.
local function hold(case, list, against)
  local published = against ~= "reference" and PUBLISHED or nil
  for i, result in ipairs(fh.grid.check(case, list, { device = dev, against = against, flops = REFERENCE_FLOPS })) do
    local record = fh.record.new {
      path = list[i], case = case:describe(), parity = result, work = result.work, run = run, more = { published = published },
    }
    records[#records + 1] = record
    note(record.path, result)
    figures[#figures + 1] = {
      s_q = case.s_q, path = record.path, provider = record.provider, against = fh.provider.name_of(against),
      status = result.status, rows = result.sampled or case.s_q, mean_abs = result.mean_abs,
      published_mean = published and published.mean_abs, max_abs = result.max_abs,
      published_max = published and published.max_abs,
    }
  end
end

-- Those that are not padded to 64 heads, and all of them.
local native, everyone = {}, {}
for _, path in ipairs(paths) do
  if path ~= "auto" then everyone[#everyone + 1] = path end
  if path ~= "auto" and path ~= "padded" and path ~= flashmla then native[#native + 1] = path end
end

for _, s_q in ipairs(fh.axis.integers("--published", opt.published or (on_cpu and "64,2048" or "64,2048,8192"), 1)) do
  if interrupted then break end
  progress:show(("published tests: s_q %d"):format(s_q))
  local case = fh.grid.published(s_q)
  for _, against in ipairs(flashmla and { flashmla, "padded", "reference" } or { "padded", "reference" }) do
    hold(case, against == "reference" and everyone or native, against)
  end
end
progress:clear()

-- ---- Report -------------------------------------------------------------------------------------------------------------------

local base_name = fh.provider.name_of(base)
local race_columns = {
  { key = "pattern", align = "left" }, { key = "s_q" }, { key = "path", align = "left" }, { key = "provider", align = "left" },
  { key = "parity", align = "left" }, { key = "max_abs", title = "max error", format = "%.1e" },
  { key = "between", title = "to " .. base_name, format = "%.1e" }, { key = "agreement", title = "three ways", align = "left" },
  { key = "median", title = "median us", format = "%.1f" }, { key = "spread", title = "p05 .. p95" },
  { key = "ratio", title = base_name .. " / path", format = "%.2f" }, { key = "verdict", align = "left" },
  { key = "kernel", align = "left" },
}
local figure_columns = {
  { key = "s_q" }, { key = "path", align = "left" }, { key = "provider", align = "left" }, { key = "against", align = "left" },
  { key = "status", title = "parity", align = "left" }, { key = "rows" }, { key = "mean_abs", format = "%.2e" },
  { key = "published_mean", title = "published", format = "%.1e" }, { key = "max_abs", format = "%.2e" },
  { key = "published_max", title = "published", format = "%.2e" },
}
local legend = {
  ("max error: in out, against the reference. to %s: the same against %s. three ways: which of reference, %s and this one is "
    .. "wrong, if any."):format(base_name, base_name, base_name),
  "Times by the device's own timer, paths in turns, hot caches; packed runs on a plan that is there, auto makes its own.",
  "What a provider prepares once for a call, and bringing its results to the caller's memory, is not in its times"
    .. (padding and ", but FlashMLA's padding is." or "."),
}
local figures_legend = "8 of 64 heads, topk 640, lists of 512, sinks; q and out are views of 64-head buffers, out is written in "
  .. "place and nothing around it. Kernels that round weights to bf16 differ from each other by as much as from the reference, "
  .. "unless they take the keys in the same tiles."

local title = ("Peers on %s: %s%s"):format(run.device, opt.preset, opt.heads and (", %d heads"):format(opt.heads) or "")
print(("\n%s\n%s"):format(title, fh.table.text(rows, race_columns)))
if interrupted then
  notes[#notes + 1] = ("interrupted: %d records"):format(#records)
  if #records == 0 then fh.cli.exit(fh.cli.INTERRUPTED, "peers: interrupted before the first cell was done") end
end
if #notes > 0 then print(table.concat(notes, "\n")) end
print(table.concat(legend, "\n"))
print("\nThe published figures\n" .. fh.table.text(figures, figure_columns) .. "\n" .. figures_legend)

local function list(lines)
  local out = {}
  for i, line in ipairs(lines) do out[i] = "- " .. line .. "\n" end
  return table.concat(out)
end
local driver = run.driver ~= "" and (", driver %s"):format(run.driver) or ""
local markdown = table.concat {
  "# ", title, "\n\n",
  list {
    ("command: `%s`"):format(fh.shell.line { "./fewhead", "run", "experiments/peers.lua", unpack(arg) }),
    ("commit %s%s%s, %s"):format(run.commit, run.dirty and " with changes" or "", driver, run.date),
  },
  list(head), "\n", fh.table.markdown(rows, race_columns), "\n", #notes > 0 and list(notes) .. "\n" or "",
  table.concat(legend, "\n"), "\n\n## The published figures\n\n", fh.table.markdown(figures, figure_columns), "\n",
  figures_legend, "\n",
}
need(fh.record.write(folder .. "/peers.jsonl", records))
need(fh.file.write(folder .. "/peers.md", markdown))
print(("\nwritten: %s/peers.jsonl, .md"):format(folder))
if interrupted then return fh.cli.INTERRUPTED end
return wrong == 0 and 0 or fh.cli.FAILED
