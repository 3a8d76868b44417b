-- Lists with structure on every path of a device, against values that one can work out by hand: q is 0 and every element of KV
-- row j is j, so out is the mean of the listed rows and lse the logarithm of their number. FEWHEAD_DEVICE names the device.
local ffi = require "ffi"
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local paths = require "fewhead.device.path"

local DEVICE = os.getenv("FEWHEAD_DEVICE") or "cpu"

-- A problem whose rows all have the list, -1 or `garbage` behind it.
local function problem_of(dev, o, list, garbage)
  local p = assert(case(o):problem(dev))
  assert(p.q:fill(0))
  for j = 1, o.s_kv or p.case.s_kv do assert(p.kv[{ { j, j }, {} }]:fill(j - 1)) end
  if not list then return p end
  local indices, lengths = ffi.new("int32_t[?]", o.s_q * o.topk), ffi.new("int32_t[?]", o.s_q)
  for s = 0, o.s_q - 1 do
    for k = 0, o.topk - 1 do indices[s * o.topk + k] = list[k + 1] or garbage and garbage[k % #garbage + 1] or -1 end
    lengths[s] = garbage and #list or o.topk
  end
  assert(p.indices:write(indices))
  assert(p.topk_length:write(lengths))
  return p
end

-- Out of row s on every head, and its lse.
local function check(p, path, s, mean, keys)
  local out = assert(p:outputs())
  assert(p:run(path, out))
  local lse = out.lse:get(s, 1)
  for _, h in ipairs { 1, p.case.h_q } do
    for _, d in ipairs { 1, 512 } do assert.equal(mean, out.out:get(s, h, d), path) end
  end
  assert.is_true(math.abs(lse - math.log(keys)) < 1e-5, ("%s: lse %g, wanted %g"):format(path, lse, math.log(keys)))
end

describe("lists with structure on " .. DEVICE, function()
  local dev = assert(device.open(DEVICE))

  local function each_path(f)
    for _, path in ipairs { "reference", "auto", unpack(paths.candidates()) } do
      if path == "auto" or path == "reference" or dev:has_path(path, 8) then f(path) end
    end
  end

  -- Pools {0, 2} of 4 and the tail {12, 13}: 69 / 10 = 6.9, which is 6.90625 in bf16.
  local POOLS = { 0, 1, 2, 3, 8, 9, 10, 11, 12, 13 }
  local GARBAGE = { 2147483647, 1073741824, -5, 14, 4 }

  for _, topk in ipairs { 10, 11, 64, 2051, 2176 } do
    it("pools and a tail, " .. topk .. " wide", function()
      local o = { s_q = 9, h_q = 8, pattern = "uniform", s_kv = 14, topk = topk, lengths = topk, sink = "none" }
      local short = problem_of(dev, o, POOLS)
      local cut = problem_of(dev, o, POOLS, GARBAGE)
      each_path(function(path)
        for _, p in ipairs { short, cut } do
          check(p, path, 1, 6.90625, 10)
          check(p, path, 9, 6.90625, 10)
        end
      end)
    end)
  end

  it("pools at and past the end are as any invalid index", function()
    local list = { 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 2147483644, 2147483647 }
    local o = { s_q = 9, h_q = 8, pattern = "uniform", s_kv = 14, topk = 18, lengths = 18, sink = "none" }
    local p = problem_of(dev, o, list)
    each_path(function(path) check(p, path, 9, 6.90625, 10) end)
  end)

  it("the pattern `pools` from the first token on", function()
    local p = problem_of(dev, { s_q = 5, h_q = 8, pattern = "pools", index_topk = 8, prior = 0, sink = "none" })
    each_path(function(path)
      for s = 1, 5 do check(p, path, s, (s - 1) / 2, s) end
    end)
  end)

  it("the pattern `all`: compressed rows, then the window", function()
    local o = { s_q = 9, h_q = 8, pattern = "all", ratio = 2, window = 3, prior = 0, sink = "none" }
    local p = problem_of(dev, o)
    each_path(function(path)
      check(p, path, 1, 4, 1) -- no compressed row yet; token 0 is KV row 4
      check(p, path, 2, (0 + 4 + 5) / 3, 3)
      check(p, path, 9, 5.5625, 7) -- (0 + 1 + 2 + 3 + 10 + 11 + 12) / 7 = 5.571 in bf16
    end)
  end)
end)
