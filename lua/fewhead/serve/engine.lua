--- Engine: how long one step of a serving engine takes: attention of the prompt tokens by path, and everything else as
-- an explicit budget.
--
--     local engine = fh.engine_preset.get "h20x8-tp8"
--     local us = engine:attention("padded", { s_q = 8192, requests = 1, from = { 0 }, to = { 8192 } })
--     print(engine)                                      -- the assumptions, a line each
--
--     step = rest.step_us + rest.token_us * tokens + rest.context_us * (prompt tokens x tokens before them)
--          + rest.decode_us * decoding requests + attention of the chunk over all layers, plans included
--
-- tokens: all of the step, prompt and decode. context_us is what an indexer's cost grows by; it stands for a million
-- pairs. Attention comes from one of two sources: measured cells of this library on a device (fh.engine.measured), or
-- the padded kernel's FLOPs over the device's rate and a published ratio for native heads (fh.engine.computed), for
-- devices that nobody here has.
local args = require "fewhead.base.arguments"
local paths = require "fewhead.device.path"
local presets = require "fewhead.case.preset"

local M = {}

-- ---- Keys -----------------------------------------------------------------------------------------------------------

-- Sum of min(i, most) for i = 1 .. n.
local function capped(n, most)
  if n <= most then return n * (n + 1) / 2 end
  return most * (most + 1) / 2 + (n - most) * most
end

-- Sum of min(floor(i / ratio), most) for i = 1 .. n.
local function picked(n, ratio, most)
  local whole = math.min(math.floor(n / ratio), most)
  -- i in [k * ratio, (k + 1) * ratio) gives k, for k below `whole`; everything from whole * ratio on gives `whole`
  return ratio * whole * (whole - 1) / 2 + math.max(0, n - whole * ratio + 1) * whole
end

--- Keys of the prompt rows at positions from .. to - 1 of one request in a layer of a compression ratio (0: window
-- only): the sum of min((pos + 1) / ratio, index_topk) + min(pos + 1, window), as the engine sets topk_length.
function M.keys(ratio, index_topk, window, from, to)
  local keys = capped(to, window) - capped(from, window)
  if ratio > 0 then keys = keys + picked(to, ratio, index_topk) - picked(from, ratio, index_topk) end
  return keys
end

local Engine = { __name = "engine" }
Engine.__index = Engine

-- Keys of a chunk in a layer of the ratio.
local function keys_of(engine, chunk, ratio)
  local p, keys = engine.preset, 0
  for i = 1, chunk.requests do keys = keys + M.keys(ratio, p.index_topk, p.window, chunk.from[i], chunk.to[i]) end
  return keys
end

--- Keys of a chunk over all layers of the model.
function Engine:keys(chunk)
  local keys = 0
  for _, ratio in ipairs(self.preset.ratios) do keys = keys + self.preset.layers_at[ratio] * keys_of(self, chunk, ratio) end
  return keys
end

-- ---- The budget -----------------------------------------------------------------------------------------------------

--- What a step takes besides the prompt's attention; microseconds, context_us for a million (token, token before it)
-- pairs.
-- @value rest_names
M.rest_names = { "step_us", "token_us", "context_us", "decode_us" }

local function rest_of(what, given, level)
  local rest = args.options(what, given, M.rest_names, level + 1)
  local full = {}
  for _, name in ipairs(M.rest_names) do full[name] = args.number(what .. "." .. name, rest[name] or 0, 0, nil, level + 1) end
  return full
end

--- Microseconds of a step without the prompt's attention.
function Engine:rest_us(chunk)
  local rest, pairs_before = self.rest, 0
  for i = 1, chunk.requests do
    local from, to = chunk.from[i], chunk.to[i]
    pairs_before = pairs_before + (to - from) * (from + to) / 2
  end
  return rest.step_us + rest.token_us * (chunk.s_q + chunk.decode_tokens) + rest.decode_us * chunk.decodes
    + rest.context_us * pairs_before / 1e6
end

--- An engine with another budget and the same attention: rest replaces fields of this one's.
function Engine:with(rest)
  local copy, full = {}, {}
  for key, value in pairs(self) do copy[key] = value end
  for _, name in ipairs(M.rest_names) do full[name] = args.given(rest[name], self.rest[name]) end
  copy.rest = rest_of("engine:with", full, 2)
  return setmetatable(copy, Engine)
end

-- ---- Attention from first principles --------------------------------------------------------------------------------

local COMPUTED = { "name", "preset", "tflops", "efficiency", "ratio", "rest", "draft", "acceptance", "about" }

--- An engine whose attention is computed. Options: name; preset ("v4.1-flash tp8"); tflops, the device's bf16 tensor
-- rate in TFLOP/s; efficiency, the share of it that the padded kernel reaches on the tiles it multiplies; ratio, the
-- time of padded over that of native heads, as published; rest = { step_us, token_us, context_us, decode_us }; draft,
-- acceptance: speculative decoding (fh.scheduler). padded: 2 * h_pad * (d_qk + d_v) FLOPs a key over all layers, /
-- (tflops * efficiency).
function M.computed(options)
  local o = args.options("engine.computed", options, COMPUTED, 2)
  local preset = presets.get(o.preset, 3)
  local rate = args.number("engine.computed: tflops", o.tflops, 1e-6, nil, 2)
  local efficiency = args.number("engine.computed: efficiency", o.efficiency, 0.001, 1, 2)
  local ratio = args.number("engine.computed: ratio", o.ratio, 1e-6, nil, 2)
  local us_a_key = 2 * preset.h_pad * (preset.d_qk + preset.d_v) / (rate * 1e12 * efficiency) * 1e6
  local engine = setmetatable({ name = o.name, preset = preset, rest = rest_of("engine.computed: rest", o.rest, 2),
    draft = o.draft, acceptance = o.acceptance, paths = { "padded", "native" } }, Engine)
  function engine.attention(self, path, chunk)
    local us = us_a_key * self:keys(chunk)
    return path == "padded" and us or us / ratio, path
  end
  engine.lines = {
    ("attention: computed; padded = %d heads x 2 x %d FLOPs a key at %.0f TFLOP/s x %.2f; native = padded / %.2f at every s_q")
      :format(preset.h_pad, preset.d_qk + preset.d_v, rate, efficiency, ratio),
    o.about,
  }
  engine.computed_from = o
  return engine
end

--- The same engine with another kernel or on another number of cards, for questions of the kind "what if". change = { speedup =
-- the time of padded over that of native heads, tp = cards that share the heads }. With tp the time of a token and of a step
-- besides attention is taken to shrink as the cards grow in number, which nobody has measured; padded heads cost the same. Raises
-- where the attention is measured, and for a tp that the model has no preset of or that leaves no head to pad.
function Engine:what_if(change, level)
  level = (level or 1) + 1
  local c = args.options("engine:what_if", change, { "speedup", "tp" }, level)
  local from = self.computed_from
  if not from then
    error(("%s: has no effect on engine %s, whose attention is measured"):format(c.speedup and "speedup" or "tp", self.name),
      level)
  end
  local o, rest, lines = {}, {}, {}
  for key, value in pairs(from) do o[key] = value end
  for key, value in pairs(self.rest) do rest[key] = value end
  o.ratio, o.rest = args.number("speedup", c.speedup or o.ratio, 1e-6, nil, level), rest
  if c.tp then
    local model, before = self.preset.name:match("^(.-) tp(%d+)$")
    local name = ("%s tp%d"):format(model, args.integer("tp", c.tp, 1, nil, level))
    local sizes, known = {}, false
    for _, each in ipairs(presets.names()) do
      local of, size = each:match("^(.-) tp(%d+)$")
      local p = of == model and presets.get(each)
      if p and p.h_q < p.h_pad then sizes[#sizes + 1], known = tonumber(size), known or each == name end
    end
    table.sort(sizes)
    if not known then
      error(("tp: got %d, wanted one at which heads of %s are padded: %s"):format(c.tp, model, table.concat(sizes, ", ")), level)
    end
    o.preset = name
    for _, key in ipairs { "step_us", "token_us", "context_us" } do rest[key] = rest[key] * tonumber(before) / c.tp end
    lines[1] = ("what if: %d cards in place of %s; the rest of a step is taken to shrink with them: an assumption"):format(c.tp,
      before)
  end
  if c.speedup then lines[#lines + 1] = ("what if: native heads %g times as fast as padded ones"):format(c.speedup) end
  o.draft, o.acceptance = self.draft, self.acceptance
  o.name = o.name .. " what if" -- published figures are those of another engine
  local engine = M.computed(o)
  for _, line in ipairs(lines) do engine.lines[#engine.lines + 1] = line end
  return engine
end

-- ---- Attention from measured cells ----------------------------------------------------------------------------------

--- An engine whose attention is measured: fitted is what fh.gate.fit makes of a sweep (its curve that decides, and its
-- costs). Options: name, preset (default: that of the sweep's case), rest, draft, acceptance. A layer takes what the
-- measured case of its s_q takes (interpolated between cells), times the layer's keys over the measured case's; packed
-- and auto pay for one plan an index list, which the layers that share the list divide. Beyond the measured s_q the
-- cost model answers; the result counts such rows.
function M.measured(fitted, options)
  args.table("engine.measured: fitted", fitted, 2)
  local o = args.options("engine.measured", options, { "name", "preset", "rest", "draft", "acceptance" }, 2)
  local cost, curve = fitted.cost, fitted.decides
  if not cost or not curve then
    error("engine.measured: fitted: got a gate without measured cells, wanted what fh.gate.fit returns", 2)
  end
  local case = curve.points[1].padded.case
  local preset = presets.get(o.preset or case.preset or presets.default, 3)
  if preset.h_q ~= case.h_q then
    error(("engine.measured: preset: got %s with %d heads, but the sweep measured %d heads"):format(preset.name, preset.h_q,
      case.h_q), 2)
  end
  local engine = setmetatable({ name = o.name or curve.device or "measured cells", preset = preset, draft = o.draft,
    rest = rest_of("engine.measured: rest", o.rest, 2), acceptance = o.acceptance, outside_rows = 0, rows = 0,
    paths = paths.candidates() }, Engine)
  engine.paths[#engine.paths + 1] = "auto"
  local lowest, highest = cost:range()
  local per_key = 2 * case.h_q * (case.d_qk + case.d_v)
  -- Keys a row of the measured case at s_q: those of the nearest cell.
  local function measured_keys(s_q)
    local best
    for _, point in ipairs(curve.points) do
      if not best or math.abs(point.s_q - s_q) < math.abs(best.s_q - s_q) then best = point end
    end
    return best.padded.work.useful_flops / per_key / best.s_q
  end
  local function path_us(path, s_q)
    if path == "auto" then
      local taken = cost:auto(s_q)
      return cost:at(taken or "native", s_q), taken or "native"
    end
    return cost:at(path, s_q), path
  end
  local cache = {}
  function engine.attention(self, path, chunk)
    local s_q = chunk.s_q
    self.rows = self.rows + s_q
    if s_q < lowest or s_q > highest then self.outside_rows = self.outside_rows + s_q end
    local key = path .. s_q
    local found = cache[key]
    if not found then
      local us, taken = path_us(path, s_q)
      local plan = taken ~= "native" and paths.get(taken).wants_plan and cost.fit.plan
      local groups = math.ceil(s_q / math.max(1, math.floor(64 / preset.h_q)))
      found = { us_a_key = us / (measured_keys(s_q) * s_q), taken = taken,
        plan_us = plan and plan.call_us + plan.unit_us * groups, plan_gflop_us = plan and plan.gflop_us }
      cache[key] = found
    end
    local us = found.us_a_key * self:keys(chunk)
    if found.plan_us then
      for _, list in ipairs(preset.lists) do
        us = us + found.plan_us + found.plan_gflop_us * per_key * keys_of(self, chunk, list.ratio) / 1e9
      end
    end
    return us, found.taken
  end
  engine.lines = {
    ("attention: measured, %s %s cells of s_q %d to %d on %s, scaled by each layer's keys; plans: one an index list"):format(
      curve.pattern, curve.layout, lowest, highest, curve.device or "an unnamed device"),
  }
  return engine
end

function Engine:__tostring()
  local rest, lines = self.rest, { ("engine %s: %s, %d layers"):format(self.name, self.preset.name, self.preset.layers) }
  for _, line in ipairs(self.lines) do lines[#lines + 1] = line end
  lines[#lines + 1] = ("rest of a step: %.1f ms + %.1f us a token + %.3g us a million (token, token before it) pairs + %.1f us "
    .. "a decoding request"):format(rest.step_us / 1e3, rest.token_us, rest.context_us, rest.decode_us)
  if self.draft then
    lines[#lines + 1] = ("speculative decoding: %d draft token%s, each accepted with probability %.3f"):format(self.draft,
      self.draft == 1 and "" or "s", self.acceptance)
  end
  return table.concat(lines, "\n")
end

return M
