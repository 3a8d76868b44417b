--- Assertions for specs with busted: are the numbers right, which path ran, was anything else written?
--
--     local fh = require "fewhead"
--     fh.assert.register()                                           -- adds the assertions to luassert
--     assert.matches_reference(outputs, fh.parity.expected(problem))
--     assert.path(case, "packed")
--     assert.untouched(outputs)
--
-- Each has its opposite: assert.is_not.untouched(outputs). Wrong arguments, and a comparison that says nothing, raise: they count
-- neither as true nor as false. docs/guide.md has a whole spec.
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local layout = require "fewhead.case.layout"
local parity = require "fewhead.measure.parity"
local paths = require "fewhead.device.path"

local M = {}

-- Outputs, or the tensor `out` alone, as a table of tensors.
local function outputs_of(what, v, level)
  if type(v) == "table" and v.dtype and v.shape then return { out = v } end
  if type(v) == "table" and type(v.out) == "table" then return v end
  error(("%s: got %s, wanted a tensor or outputs { out =, lse =, max_logits = }"):format(what, args.show(v)), level + 1)
end

--- Whether outputs agree with a reference.
--   out        the tensor out, bf16 or f32 [s_q, h_q, d_v]; or outputs { out =, lse =, max_logits = }, the last two f32 [s_q,
--              h_q], each compared where both sides have it
--   ref        the same, or what fh.parity.expected gives: then the rows of its sample count, at the tolerance of its problem
--   tolerance  { out = { abs =, rel =, cos = }, .. } in place of FlashMLA's (fh.parity.tolerance)
-- Returns true; or false and the reason with the place that is most wrong. Raises where nothing can be compared: other shapes, a
-- reference that was not written or is all zero.
function M.matches_reference(out, ref, tolerance)
  local what = "assert.matches_reference"
  local got, want = outputs_of(what .. ": out", out, 2), outputs_of(what .. ": ref", ref, 2)
  local result
  if want.problem then
    result = parity.judge_whole(want.problem, got, want, { tolerance = tolerance, canaries = false })
  else
    result = parity.compare(got, want, { tolerance = tolerance })
  end
  if result.status == "invalid" then error(("%s: %s"):format(what, result.reason), 2) end
  return result.status == "pass", result.reason
end

--- Whether "auto" takes a path for a case. case: of fh.case. path: "padded", "gather" or "packed"; the case runs once, and every
-- row must go there. dev: a device (default: fh.device's). Returns true; or false and where the rows went. Raises when the call
-- is refused.
function M.path(case, path, dev)
  local what = "assert.path"
  if type(case) ~= "table" or type(case.problem) ~= "function" then
    error(("%s: case: got %s, wanted a case, such as fh.case{..} gives"):format(what, args.show(case)), 2)
  end
  args.enum(what .. ": path", path, paths.candidates(), 2)
  dev = device.check(what .. ": device", dev or device.default(), 2)
  local problem, err = case:problem(dev)
  local outputs, work
  if problem then outputs, err = problem:outputs() end
  if outputs then
    work, err = problem:run("auto", outputs)
    outputs:free()
  end
  if not work then error(("%s: %s"):format(what, err), 2) end
  return work.path == path, ("auto ran %s, wanted %s"):format(work.path, path)
end

--- Whether nothing around outputs was written. canary: outputs of problem:outputs() or fh.layout.outputs, whose surroundings hold
-- bytes 0xFF. Returns true; or false and the first place that was written.
function M.untouched(canary)
  local ok, intact, touched = pcall(layout.intact, canary)
  if not ok then
    error(("assert.untouched: got %s, wanted outputs, such as problem:outputs() gives"):format(args.show(canary)), 2)
  end
  return intact == true, touched
end

-- What a failed `assert.is_not` says.
local OPPOSITE = {
  matches_reference = "the outputs match the reference, wanted a difference",
  path = "auto took that path, wanted another one",
  untouched = "nothing around the outputs was written, wanted a write",
}

--- Add the assertions matches_reference, path and untouched to luassert, which is busted's `assert`. Twice does no harm. Raises
-- where there is no luassert.
function M.register()
  local found, luassert = pcall(require, "luassert")
  if not found then
    error("assert.register: got no Lua module luassert, wanted busted's (Debian and Ubuntu: apt-get install lua-busted)", 2)
  end
  for name, opposite in pairs(OPPOSITE) do
    luassert:register("assertion", name, function(state, arguments, level)
      local ok, holds, reason = pcall(M[name], unpack(arguments, 1, arguments.n))
      if not ok then error((tostring(holds):gsub("^[^:\n]*:%d+: ", "")), level + 1) end
      state.failure_message = ("%s: %s"):format(name, holds and opposite or reason)
      return holds
    end)
  end
end

return M
