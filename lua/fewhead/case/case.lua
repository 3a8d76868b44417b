--- A case: one prefill call described in full, sizes, memory layout, index lists and numbers, from one table of options.
--
--     local case = fh.case { heads = 8, s_q = 2048, pattern = "csa", layout = "vllm" }
--     print(case, case.s_kv, case:describe().topk)
--     local problem = assert(case:problem(fh.device.default()))
--
-- Options, all but s_q with a default:
--   preset       "v4.1-flash tp8": where the sizes come from that are not given (fh.preset).
--   h_q, heads   query heads of this rank, 1 .. 128. Two names of one thing.
--   h_pad        64 or 128: the heads that the padded path computes and a vllm layout holds. Default: the smaller that fits.
--   s_q          query rows of the chunk. s_kv: KV rows; patterns that know where tokens lie make as many as they need.
--   d_qk         512 or 576. d_v is 512.
--   topk         width of the index lists. Default: what pattern and preset need.
--   pattern      "csa" (default; "file" where indices is given; "pools" for presets whose lists are pools), "local", "window",
--                "uniform", "blocks", "pools", "all", "dense_prefix", "file", or a function(row) that returns the row's list,
--                { row = function, name = "mine" }, { fill = function }; its options window, index_topk,
--                ratio, block, keep, holes, repeats, lengths, requests, prior, invalid_rows and indices stand in
--                fewhead.pattern.
--   prior        as there, but where left out each request's prompt is taken to end with this chunk and to be 8192 tokens long:
--                short chunks are tails of prompts, which is what engines see, and lists are full whatever s_q is. 0 is a
--                prompt's start.
--   boundaries   whether the call says where its requests begin, cu_seqlens_q, so that no packed group holds rows of two (false);
--                for patterns that read requests. Captured lists whose header has the offsets say so unless this is false.
--   layout       "contiguous" (default), "vllm", "strided", "offset": see fewhead.layout.
--   values       "normal" (default): q and kv standard normal. "flashmla": as FlashMLA's tests make them, standard normal / 10
--                plus one constant in -0.05 .. 0.05 each.
--   scale_q      factor on q (1): large ones make softmax pick single keys.
--   sink         "normal": attn_sink standard normal. "none" or false: no sink. "flashmla": 31 % -inf, 31 % +inf. true is
--                "normal". Default: "normal" for models with a window, which have sinks, "none" for the others.
--   sm_scale     > 0. Default d_qk^-0.5.
--   lse, max_logits   whether the call asks for them (true).
--   seed         0 .. 2^53 - 1 (0).
-- The object has all that describe() gives as fields, and cannot be changed. fh.case(case:describe()) is the same case, unless
-- its pattern is a function, which is not in a description.
local args = require "fewhead.base.arguments"
local ffi = require "ffi"
local device = require "fewhead.device.device"
local hash = require "fewhead.base.hash"
local layout = require "fewhead.case.layout"
local option = require "fewhead.base.option"
local pattern = require "fewhead.case.pattern"
local preset = require "fewhead.case.preset"
local problem = require "fewhead.case.problem"
local F = require "fewhead.base.ffi"

local given = args.given

local M = {}
-- A tail call: errors blame the caller, as for M.new itself.
setmetatable(M, { __call = function(_, ...) return M.new(...) end })

-- Tokens of a prompt that the default `prior` describes; vLLM's default for the tokens of one step.
local PROMPT = 8192
--- That number.
M.prompt = PROMPT

local MAX_HEADS = 128

-- attn_sink: a name, or true and false for "normal" and "none".
option.kinds.SINK = { axis = "mixed", check = function(value, row)
  if type(value) == "boolean" then return value and "normal" or "none" end
  return option.kinds.TEXT.check(value, row)
end }

-- The options of a case in the order in which a sweep goes through them, the slowest first; text stands for the row of an index
-- list (fh.pattern.rows).
local LIST = {
  "s_q", { "--preset", "NAME", "model and TP size", axis = true, choices = preset.names(), listed = preset.listed },
  { "--heads", "INTEGER", "query heads of this rank", axis = true, lo = 1, hi = MAX_HEADS },
  { "h_q", "INTEGER", "another name of heads", axis = true, lo = 1, hi = MAX_HEADS },
  { "--pattern", "NAME", "index pattern", kind = "PATTERN", axis = true, choices = pattern.names },
  { "--layout", "NAME", "memory layout", axis = true, choices = layout.names, default = "contiguous" },
  "s_kv", "topk", "window", "index_topk", "ratio", "prior", "requests", "keep", "holes", "repeats", "lengths", "invalid_rows",
  "indices", { "--boundaries", "BOOLEAN", "the call says where requests begin", axis = true, default = false },
  { "--h-pad", "INTEGER", "heads that the padded path computes", axis = true, choices = { 64, 128 } },
  { "--d-qk", "INTEGER", "width of q and of a KV row", axis = true, choices = { 512, 576 } },
  { "--d-v", "INTEGER", "width of the output", axis = true, choices = { 512 } },
  { "--values", "NAME", "numbers in q and kv: normal, flashmla", axis = true, choices = { "normal", "flashmla" },
    default = "normal" },
  { "--scale-q", "NUMBER", "factor on q", axis = true, lo = 0, default = 1 },
  { "--sink", "NAME", "attn_sink: normal, none, flashmla", kind = "SINK", axis = true,
    choices = { "normal", "none", "flashmla" } },
  { "--sm-scale", "NUMBER", "factor on the logits", axis = true },
  { "--lse", "BOOLEAN", "whether the call asks for lse", axis = true, default = true },
  { "--max-logits", "BOOLEAN", "whether the call asks for max_logits", axis = true, default = true }, "seed",
}
local named = {}
for i, row in ipairs(LIST) do
  if type(row) == "string" then LIST[i], named[row] = pattern.rows.by_key[row], true end
end
for _, row in ipairs(pattern.rows.list) do -- of a new pattern, say
  if not named[row.key] then LIST[#LIST + 1] = row end
end

--- The options of a case (fewhead.base.option): what fh.case, fh.sweep's axes and the command line read.
M.rows = option.rows("case", LIST)

--- The names of all options.
M.options = option.keys(M.rows)

-- What pattern.resolve is to be asked: the options given, and the preset's sizes for those that were not.
local function pattern_options(o, name, base)
  local p = {}
  for _, key in ipairs(pattern.options) do p[key] = o[key] end
  for _, key in ipairs(pattern.of_preset(name)) do
    local stands = key == "index_topk" and p.topk ~= nil -- topk says it, less the window
    if p[key] == nil and not stands then p[key] = base[key] end
  end
  return p
end

-- The prior of requests of so many rows where none is given: a list.
local function default_prior(requests)
  local prior = {}
  for r, rows in ipairs(requests) do prior[r] = math.max(0, PROMPT - rows) end
  return prior
end

--- Whether the prior of a described case is what fh.case takes where none is given, so that it follows from s_q; nil for a case
-- without one.
function M.has_default_prior(described)
  local prior, requests = described.prior, given(described.requests, 1)
  if prior == nil then return nil end
  if type(requests) ~= "table" then requests = pattern.deal(described.s_q, requests) end
  for r, usual in ipairs(default_prior(requests)) do
    local own = type(prior) == "table" and prior[r] or prior
    if own ~= usual then return false end
  end
  return true
end

local function resolve_pattern(name, p, level)
  local g, err = pattern.resolve(name, p, level + 1, "case")
  if not g or not g.requests or p.prior ~= nil then return g, err end
  p.prior = default_prior(g.requests)
  g = pattern.resolve(name, p, level + 1, "case")
  return g
end

-- A copy of the list, or nil where it is `means`, the list that one number stands for.
local function brief(list, means)
  for r, n in ipairs(list) do
    if n ~= means[r] then return { unpack(list) } end
  end
  return nil
end

local function describe(o, g)
  local d = {
    preset = o.preset, s_q = g.s_q, s_kv = g.s_kv, topk = g.topk, pattern = g.name, seed = g.seed, lengths = g.lengths,
    invalid_rows = g.invalid_rows,
  }
  for _, key in ipairs(pattern.reads(g.name)) do d[key] = g[key] end
  d.pattern_name = g.rule and g.rule.name
  if g.requests then
    local same = {}
    for r = 1, #g.prior do same[r] = g.prior[1] end
    d.requests = brief(g.requests, pattern.deal(g.s_q, #g.requests)) or #g.requests
    d.prior = brief(g.prior, same) or g.prior[1]
  end
  return d
end

-- The key of what a case keeps to itself: fields, the description; geometry, what pattern.resolve gave; problems, by device.
local STATE = {}

local Case = { __name = "case" }
local method = {}

function Case:__index(key)
  local m = method[key]
  if m ~= nil then return m end
  return rawget(self, STATE).fields[key]
end

function Case.__newindex(_, key)
  error(("case: %s: a case cannot be changed; fh.case makes another"):format(tostring(key)), 2)
end

--- The pattern of a case that names none: "file" where indices is given, else what the preset's lists follow.
function M.default_pattern(name, indices)
  return indices ~= nil and "file" or preset.pattern_of(name or preset.default) or "csa"
end

--- Check the options and describe the call; nothing is allocated on a device. Wrong options raise; nil, err for a bad file.
function M.new(o)
  local unwanted = type(o) == "table" and o.boundaries == false
  o = option.table("case", o, M.rows)
  local base = preset.get(given(o.preset, preset.default), 3)
  if o.heads ~= nil and o.h_q ~= nil and o.heads ~= o.h_q then
    error(("case: heads: got %s, but h_q is %s"):format(args.show(o.heads), args.show(o.h_q)), 2)
  end
  local h_q = given(given(o.h_q, o.heads), base.h_q)
  local h_pad = given(o.h_pad, F.C.fh_padded_heads(h_q))
  if h_pad < h_q then error(("case: h_pad: got %d, wanted at least h_q = %d"):format(h_pad, h_q), 2) end
  local d_qk = given(o.d_qk, base.d_qk)

  local name = given(o.pattern, M.default_pattern(base.name, o.indices))
  local g, err = resolve_pattern(name, pattern_options(o, name, base), 2)
  if not g then return nil, err end

  local fields = describe(o, g)
  fields.h_q, fields.h_pad, fields.d_qk, fields.d_v = h_q, h_pad, d_qk, given(o.d_v, base.d_v)
  if g.offsets then fields.boundaries = not unwanted else fields.boundaries = o.boundaries or nil end
  if fields.boundaries and not g.requests and not g.offsets then
    error(('case: boundaries: got true with pattern "%s", wanted one that has requests'):format(g.name), 2)
  end
  fields.sink = given(o.sink, base.window > 0 and "normal" or "none")
  for _, key in ipairs { "layout", "values", "scale_q", "lse", "max_logits" } do fields[key] = o[key] end
  fields.sm_scale = given(o.sm_scale, d_qk^-0.5)
  if fields.sm_scale <= 0 then error(("case: sm_scale: got %s, wanted a number > 0"):format(args.show(o.sm_scale)), 2) end
  return setmetatable({ [STATE] = { fields = fields, geometry = g, problems = {} } }, Case)
end

--- fh.case for options that may be wrong: the case; or nil and the reason, without the place of the call.
function M.try(options)
  local ok, made, err = pcall(M.new, options)
  if ok then return made, err end
  return nil, tostring(made):match("^[^:]*:%d+: (case: .*)$") or tostring(made)
end

local function state(self, name)
  if getmetatable(self) ~= Case then
    error(("case:%s: got %s, wanted a case: a method is called with a colon"):format(name, args.show(self)), 3)
  end
  return rawget(self, STATE)
end

--- A table of one's own with every option at the value it has, for records, and to make the case again. A pattern's options are
-- there where the pattern reads them, preset where it was named, boundaries where true; requests and prior are one number where
-- that says it all.
function method:describe()
  local copy = {}
  for key, v in pairs(state(self, "describe").fields) do copy[key] = type(v) == "table" and { unpack(v) } or v end
  return copy
end

--- Whether another process can make the case again: not where its pattern is a function.
function method:portable() return state(self, "portable").geometry.rule == nil end

--- The case's lists on the host, drawn anew: what fh.pattern's make gives.
function method:lists()
  return (pattern.draw(state(self, "lists").geometry))
end

-- What id() leaves out: what most cases have.
local USUAL = {
  d_v = 512, lengths = "natural", invalid_rows = 0, requests = 1, repeats = false, values = "normal", scale_q = 1, lse = true,
  max_logits = true,
}
-- What it begins with, and names of other options.
local FIRST = { pattern = true, s_q = true, s_kv = true, h_q = true, h_pad = true, heads = true, preset = true, d_v = true }
-- The others in order; those that do not stand here come last.
local SHOWN = {
  "d_qk", "topk", "window", "index_topk", "ratio", "keep", "holes", "repeats", "lengths", "requests", "prior", "invalid_rows",
  "indices", "boundaries", "layout", "values", "scale_q", "sink", "sm_scale", "lse", "max_logits", "seed",
}

local shown = {}
for _, key in ipairs(SHOWN) do shown[key] = true end
for _, key in ipairs(M.options) do
  if not shown[key] and not FIRST[key] then SHOWN[#SHOWN + 1] = key end
end

--- One line that two cases share when and only when they are the same, whatever options said so:
-- csa s_q=2048 s_kv=10367 h_q=8/64 d_qk=512 topk=640 window=128 ratio=1 holes=0.01 prior=6144 layout=vllm sink=normal seed=0
function method:id()
  local f = state(self, "id").fields
  local name = f.pattern_name and ("%s(%s)"):format(f.pattern, f.pattern_name) or f.pattern
  local parts = { name, "s_q=" .. f.s_q, "s_kv=" .. f.s_kv, ("h_q=%d/%d"):format(f.h_q, f.h_pad) }
  for _, key in ipairs(SHOWN) do
    local v, usual = f[key], USUAL[key]
    if key == "index_topk" then usual = f.window and f.topk - f.window end
    if key == "sm_scale" then usual = f.d_qk^-0.5 end
    if v ~= nil and v ~= usual then
      local text = type(v) == "table" and table.concat(v, "+") or type(v) == "string" and v or args.show(v)
      parts[#parts + 1] = key .. "=" .. text
    end
  end
  local g = rawget(self, STATE).geometry
  if g.rule then parts[#parts + 1] = "lists=" .. hash.text(ffi.string(g.lists, g.s_q * g.topk * ffi.sizeof("int32_t"))) end
  return table.concat(parts, " ")
end

function Case:__tostring() return self:id() end

--- The case in memory on a device: tensors filled, ready to run (fh.problem). Made once for each device and kept until
-- free() of either. Returns nil, err when there is no memory for it.
function method:problem(dev)
  local s = state(self, "problem")
  device.check("case:problem: device", dev)
  local known = s.problems[dev]
  if known and not known.freed then return known end
  local made, err = problem.build(self, s.geometry, dev)
  s.problems[dev] = made
  return made, err
end

--- Give back the problems made of this case; twice does nothing. The case stays good: problem() makes another.
function method:free()
  local s = state(self, "free")
  for _, made in pairs(s.problems) do made:free() end
  s.problems = {}
end

return M
