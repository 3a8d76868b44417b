--- Race report: kernels beside each other as a person reads it: times with their parity, and distances beside published figures.
--
--     local made = race_report.make { title = "Peers", base = "padded", records = list, held = others, notes = {} }
--     print(made:text())
local args = require "fewhead.base.arguments"
local tables = require "fewhead.base.table"

local M = {}

local Report = { __name = "race report" }
Report.__index = Report

-- A row of a record that was timed, or that failed before it was.
local function row_of(record)
  local time, parity, three, verdict = record.time, record.parity, record.three_way, record.verdict
  local row = {
    d_qk = record.case.d_qk, h_q = record.case.h_q, topk = record.case.topk, pattern = record.case.pattern,
    s_q = record.case.s_q, path = record.path, provider = record.provider, kernel = record.kernel, parity = parity.status,
    max_abs = parity.max_abs,
  }
  if three then row.between, row.agreement = three.max_abs, three.verdict end
  if time then row.median, row.spread = time.median_us, ("%.1f .. %.1f"):format(time.p05_us, time.p95_us) end
  if verdict then row.ratio, row.verdict = verdict.ratio, verdict.verdict end
  return row
end

-- A row of a record that was checked alone.
local function held_row_of(record)
  local parity, published = record.parity, record.published
  return {
    s_q = record.case.s_q, path = record.path, provider = record.provider, against = parity.against, status = parity.status,
    rows = parity.sampled or record.case.s_q, mean_abs = parity.mean_abs, max_abs = parity.max_abs,
    published_mean = published and published.mean_abs, published_max = published and published.max_abs,
  }
end

-- Columns of the times. base: the name of what everything is measured against.
local function columns_of(base)
  return {
    { key = "d_qk" }, { key = "h_q" }, { key = "topk" }, { key = "pattern", align = "left" }, { key = "s_q" },
    { key = "path", align = "left" }, { key = "provider", align = "left" },
    { key = "parity", align = "left" }, { key = "max_abs", title = "max error", format = "%.1e" },
    { key = "between", title = "to " .. base, format = "%.1e" }, { key = "agreement", title = "three ways", align = "left" },
    { key = "median", title = "median us", format = "%.1f" }, { key = "spread", title = "p05 .. p95" },
    { key = "ratio", title = base .. " / path", format = "%.2f" }, { key = "verdict", align = "left" },
    { key = "kernel", align = "left" },
  }
end

local HELD_COLUMNS = {
  { key = "s_q" }, { key = "path", align = "left" }, { key = "provider", align = "left" }, { key = "against", align = "left" },
  { key = "status", title = "parity", align = "left" }, { key = "rows" }, { key = "mean_abs", format = "%.2e" },
  { key = "published_mean", title = "published", format = "%.1e" }, { key = "max_abs", format = "%.2e" },
  { key = "published_max", title = "published", format = "%.2e" },
}

local HELD_TITLE = "The published figures"
local HELD_LEGEND = "8 of 64 heads, topk 640, lists of 512, sinks; q and out are views of 64-head buffers, out is written in "
  .. "place and nothing around it. Kernels that round weights to bf16 differ from each other by as much as from the reference, "
  .. "unless they take the keys in the same tiles."

local function legend_of(base, padding)
  return {
    ("max error: in out, against the reference. to %s: the same against %s. three ways: which of reference, %s and this one is "
      .. "wrong, if any."):format(base, base, base),
    "Times by the device's own timer, paths in turns, hot caches; packed runs on a plan that is there, auto makes its own.",
    "What a provider prepares once for a call, and bringing its results to the caller's memory, is not in its times"
      .. (padding and ", but FlashMLA's padding is." or "."),
  }
end

--- A report. o: title; base, the name of what all are measured against; records, those of the cells; held, those that were
-- checked alone, beside published figures; lines, who takes part; notes, what did not pass and why; padding, true where
-- FlashMLA's padding is in its times.
function M.make(o)
  args.options("race_report.make", o, { "title", "base", "records", "held", "lines", "notes", "padding" })
  local self = setmetatable({ title = o.title, lines = o.lines, notes = o.notes, rows = {}, held = {} }, Report)
  for i, record in ipairs(o.records) do self.rows[i] = row_of(record) end
  for i, record in ipairs(o.held) do self.held[i] = held_row_of(record) end
  self.columns, self.legend = columns_of(o.base), legend_of(o.base, o.padding)
  return self
end

--- For a terminal.
function Report:text()
  local parts = { self.title, tables.text(self.rows, self.columns) }
  for _, list in ipairs { self.notes, self.legend } do
    if #list > 0 then parts[#parts + 1] = table.concat(list, "\n") end
  end
  parts[#parts + 1] = ("\n%s\n%s\n%s"):format(HELD_TITLE, tables.text(self.held, HELD_COLUMNS), HELD_LEGEND)
  return table.concat(parts, "\n")
end

local function list_of(lines) return "- " .. table.concat(lines, "\n- ") .. "\n" end

--- For report.md, below the title and what made it.
function Report:markdown()
  return table.concat {
    list_of(self.lines), "\n", tables.markdown(self.rows, self.columns), "\n",
    #self.notes > 0 and list_of(self.notes) .. "\n" or "", table.concat(self.legend, "\n"), "\n\n## ", HELD_TITLE, "\n\n",
    tables.markdown(self.held, HELD_COLUMNS), "\n", HELD_LEGEND,
  }
end

return M
