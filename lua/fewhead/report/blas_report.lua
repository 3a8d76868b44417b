--- BLAS report: rates of paths beside a matrix product on the same threads, and whether they are what paths are meant to reach.
-- The records of experiments/bench.lua have a field more, sgemm = { flops =, median_us =, text = }: of a run of the products.
--
--     local made = blas_report.make { sgemm = sgemm, time = time.sgemm, records = list }
--     print(made:text())
local args = require "fewhead.base.arguments"
local path_table = require "fewhead.device.path"
local tables = require "fewhead.base.table"

local M = {}

-- What the paths are meant to reach: a share of sgemm's rate, by useful or by executed FLOPs, and the better native path's
-- speed-up over padded.
local WANTED = { gather = { "useful", 0.5 }, padded = { "executed", 0.7 }, packed = { "executed", 0.7 } }
local WANTED_SPEEDUP = 4

local COLUMNS = {
  { key = "path", align = "left" }, { key = "time" }, { key = "n" }, { key = "parity" },
  { key = "useful", title = "useful GFLOP/s", format = "%.1f" },
  { key = "executed", title = "executed GFLOP/s", format = "%.1f" },
  { key = "share", title = "of sgemm", format = "%.2f" }, { key = "wanted" }, { key = "met" },
  { key = "kernel", align = "left" },
}

local Report = { __name = "blas report" }
Report.__index = Report

local function yes(met) return met and "yes" or "no" end

local function gflops(flops, us) return flops / (us * 1e3) end

-- rate: sgemm's.
local function row_of(record, rate)
  local row = { path = record.path, parity = record.parity.status, kernel = record.kernel }
  local us = record.time and record.time.median_us
  if not us then return row end
  row.time, row.n = tables.time(us), record.time.n
  row.useful, row.executed = gflops(record.work.useful_flops, us), gflops(record.work.executed_flops, us)
  local counted, share = unpack(WANTED[record.path])
  row.share = row[counted] / rate
  row.wanted, row.met = ("%s >= %.2f"):format(counted, share), yes(row.share >= share)
  return row
end

-- How much faster than padded the better native path is; nil where one was not timed.
local function speedup(records)
  local padded, native
  for _, record in ipairs(records) do
    local us = record.time and record.time.median_us
    if record.path == "padded" then padded = us
    elseif us and path_table.get(record.path).native then native = math.min(native or us, us) end
  end
  return padded and native and padded / native
end

--- A report. o: sgemm, of fewhead.measure.blas; time, its time of fh.timing; records of padded, gather and packed.
function M.make(o)
  args.options("blas_report.make", o, { "sgemm", "time", "records" })
  local rate = gflops(o.sgemm.flops, o.time.median_us)
  local self = setmetatable({ rows = {}, rate = rate, speedup = speedup(o.records) }, Report)
  self.head = ("%s: %.1f GFLOP/s, %d samples of %d products"):format(tostring(o.sgemm), rate, o.time.n, o.sgemm.products)
  for i, record in ipairs(o.records) do self.rows[i] = row_of(record, rate) end
  return self
end

local function text_of(self, make)
  local last = self.speedup and ("better native path: %.2fx as fast as padded, wanted >= %d: %s"):format(self.speedup,
    WANTED_SPEEDUP, yes(self.speedup >= WANTED_SPEEDUP)) or "better native path: not known, a path was not timed"
  return ("%s\n\n%s\n\n%s"):format(self.head, make(self.rows, COLUMNS):gsub("\n$", ""), last)
end

--- For a terminal.
function Report:text() return text_of(self, tables.text) end

--- For report.md.
function Report:markdown() return text_of(self, tables.markdown) end

return M
