--- Gate table: the gates that were measured on a device, as a file that fh_gate_load reads in C and Lua.
--
--   local gate_table = require "fewhead.decide.gate_table"
--   local gate = fh.gate.fit(fh.sweep.read "results/local")
--   assert(gate_table.write("gates.json", gate_table.from(gate.curves, { run = sweep.run })))
--   local loaded = assert(gate_table.load("gates.json", dev, { h_q = 8, d_qk = 512, topk = 640 }))
--
-- The file: { schema = 1, library = FH_VERSION, device = { kind, name, multiprocessors, capability | threads, isa }, gates = list
-- of { h_q, d_qk, topk, layout, pattern, min_sq = a number or "never", lo, hi }, provenance = { build, commit, date, argv,
-- noise_floor } }. lo and hi: the interval of the crossover, rows, where there is one. A curve that noise left undecided has no
-- gate.

local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local F = require "fewhead.base.ffi"
local json = require "fewhead.base.json"

local ffi, C = F.ffi, F.C

local M = {}

--- The schema of the file that this version writes and reads.
M.schema = 1

-- The device of a run's header as fh_device_info has it: capability 90 for "9.0", isa as its number.
local function fingerprint(run)
  local described = { kind = run.kind, name = run.device }
  if run.kind == "cuda" then
    local major, minor = tostring(run.capability):match("^(%d+)%.(%d+)$")
    described.multiprocessors, described.capability = run.multiprocessors, major and 10 * major + minor
  else
    described.threads, described.isa = run.threads, F.isas[run.isa]
  end
  return json.ordered(described, { "kind", "name", "multiprocessors", "capability", "threads", "isa" })
end

local ENTRY = { "h_q", "d_qk", "topk", "layout", "pattern", "min_sq", "lo", "hi" }

-- The gate of a curve of fh.gate.fit; nil, why, where it has none.
local function entry_of(curve)
  local case = curve.points[1].padded.case
  if curve.crossover == "undecided" then
    return nil, ("%s %s, %d heads: noise hides the crossover"):format(curve.pattern, curve.layout, case.h_q)
  end
  local entry = {
    h_q = case.h_q, d_qk = case.d_qk, topk = case.topk, layout = curve.layout, pattern = curve.pattern,
    min_sq = curve.crossover == "never" and "never" or curve.min_sq,
  }
  if type(curve.crossover) == "table" then
    entry.lo, entry.hi = math.floor(curve.crossover.lo), math.ceil(curve.crossover.hi)
  end
  return json.ordered(entry, ENTRY)
end

--- The table of these curves (fh.gate.fit's .curves, of one device): options = { run = the header of their records, which says
-- what the device was, noise_floor = }. Returns the table and a list of what was left out, a text each.
function M.from(curves, options)
  args.table("gate_table.from: curves", curves)
  options = args.options("gate_table.from", options, { "run", "noise_floor" })
  local run, list, left_out = args.table("gate_table.from: run", options.run), json.array {}, {}
  for _, curve in ipairs(curves) do
    local entry, why = entry_of(curve)
    if entry then list[#list + 1] = entry else left_out[#left_out + 1] = why end
  end
  local made = {
    schema = M.schema, library = tonumber(C.FH_VERSION), device = fingerprint(run), gates = list,
    provenance = {
      build = run.build or ffi.string(C.fh_build_info()), commit = run.commit, date = run.date, argv = run.argv,
      noise_floor_ppm = options.noise_floor and math.floor(options.noise_floor * 1e6 + 0.5),
    },
  }
  return json.ordered(made, { "schema", "library", "device", "gates", "provenance" }), left_out
end

--- Write a table as `from` makes it, whole or not at all. true | nil, error.
function M.write(path, made)
  args.string("gate_table.write: path", path)
  args.table("gate_table.write: table", made)
  local ok, err = require("fewhead.record.file").write(path, json.encode(made) .. "\n")
  return ok, err
end

local WANTED = { "h_q", "d_qk", "topk" }

--- The gate that a file has for calls of this shape on this device: a gate as fh.gate.new makes it. shape = { h_q =, d_qk =, topk
-- = }. Of several for the shape, measured on other lists, the strictest. nil, reason: the file cannot be read or is no table, is
-- of another schema, library or device, or has no gate for the shape (fh_gate_load).
function M.load(path, dev, shape)
  args.string("gate_table.load: path", path)
  device.check("gate_table.load: device", dev)
  args.options("gate_table.load", args.table("gate_table.load: shape", shape), WANTED)
  for _, key in ipairs(WANTED) do args.integer("gate_table.load: " .. key, shape[key], 0, 2 ^ 31 - 1) end
  local struct = ffi.new("fh_gate", { struct_size = ffi.sizeof("fh_gate") })
  local ok, err = F.check(C.fh_gate_load(path, dev.handle, shape.h_q, shape.d_qk, shape.topk, struct))
  if not ok then return nil, err end
  return require("fewhead.decide.gate").new { min_sq = tonumber(struct.min_sq), enabled = struct.enabled ~= 0 }
end

--- The lines of a table that set its gates in an engine, by shape: "# 8 heads, d_qk 512, topk 640, csa vllm" and the export.
function M.env_lines(made)
  local gate, lines = require "fewhead.decide.gate", {}
  for _, entry in ipairs(made.gates) do
    local never = entry.min_sq == "never"
    local one = gate.new { min_sq = not never and entry.min_sq or nil, enabled = not never }
    lines[#lines + 1] = ("# %d heads, d_qk %d, topk %d, %s %s"):format(entry.h_q, entry.d_qk, entry.topk, entry.pattern,
      entry.layout)
    lines[#lines + 1] = one:export_line()
  end
  return table.concat(lines, "\n")
end

return M
