--- Gate bisect: where to measure next, so that the s_q from which native pays is known more closely than a sweep's grid says.
--
--   fh.sweep { s_q = "64:8192:*2", heads = 8, more = fh.gate_bisect.new() }
--
-- Between the last s_q at which native is slower and the first from which it is faster, the middle is measured, until the two are
-- WIDTH apart or noise hides which side the middle is on.

local gate = require "fewhead.decide.gate"
local pattern = require "fewhead.case.pattern"

local M = {}

-- Stop where the upper s_q is at most this share above the lower one.
local WIDTH = 0.1

-- The last losing and the first winning point of a curve, neighbours; nil where it has none, or a point between them is unclear.
local function bracket(curve)
  local points = curve.points
  for i = #points, 2, -1 do
    if points[i - 1].verdict == "slower" then
      if points[i].verdict == "faster" then return points[i - 1], points[i] end
      return nil
    end
  end
end

--- The s_q to measure next on a curve of fh.gate.fit; nil where its crossover is known to WIDTH, never, always, or hidden by
-- noise.
function M.next_s_q(curve)
  local low, high = bracket(curve)
  if not low then return nil end
  local middle = math.floor(math.sqrt(low.s_q * high.s_q) + 0.5)
  if middle <= low.s_q or middle >= high.s_q or high.s_q / low.s_q <= 1 + WIDTH then return nil end
  return middle
end

-- Options of a case that a description holds and that follow from s_q unless they were asked for.
local FOLLOW = { "s_kv", "prior" }

-- The options of the cell with these s_q rows beside a described case. A description has no function: that of `given` stands
-- for it; nil where there is none.
local function options_of(described, s_q, given)
  local options = {}
  for key, value in pairs(described) do options[key] = value end
  for _, key in ipairs(FOLLOW) do
    if given[key] == nil then options[key] = nil end
  end
  options.s_q, options.pattern_name = s_q, nil
  if options.pattern == "function" then
    options.pattern, options.topk = pattern.among(given.pattern, described.pattern_name), given.topk and options.topk
  end
  return options.pattern and options
end

--- A function for the option `more` of fh.sweep: given the sweep, the options of one more cell, or nil when every curve is done.
-- given: the options that the sweep was asked for; of those in FOLLOW only what stands there is kept.
function M.new(given)
  given = given or {}
  local asked = {}
  return function(sweep)
    local fitted = gate.fit(sweep)
    for _, curve in ipairs(fitted and fitted.curves or {}) do
      local s_q = M.next_s_q(curve)
      if s_q then
        local options = options_of(curve.points[1].padded.case, s_q, given)
        local text = ("%s %s %d %d%s"):format(curve.pattern, curve.layout, curve.heads, s_q, curve.label)
        if asked[text] then return nil end -- it gave no point: refused, or out of time
        asked[text] = true
        return options or nil
      end
    end
  end
end

return M
