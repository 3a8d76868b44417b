local bisect = require "fewhead.decide.gate_bisect"

local function curve(points)
  local list = {}
  for i, point in ipairs(points) do list[i] = { s_q = point[1], verdict = point[2] } end
  return { points = list }
end

describe("gate_bisect.next_s_q", function()
  it("is the geometric middle of the last loss and the first win after it", function()
    assert.equal(181, bisect.next_s_q(curve { { 64, "slower" }, { 128, "slower" }, { 256, "faster" }, { 512, "faster" } }))
    assert.equal(152, bisect.next_s_q(curve { { 128, "slower" }, { 181, "faster" }, { 256, "faster" } }))
    assert.equal(724, bisect.next_s_q(curve { { 64, "slower" }, { 128, "faster" }, { 512, "slower" }, { 1024, "faster" } }))
  end)

  it("is none where the two are 10 % apart, neighbours, or noise lies between", function()
    assert.is_nil(bisect.next_s_q(curve { { 100, "slower" }, { 110, "faster" } }))
    assert.is_number(bisect.next_s_q(curve { { 100, "slower" }, { 112, "faster" } }))
    assert.is_nil(bisect.next_s_q(curve { { 2, "slower" }, { 3, "faster" } }))
    assert.is_nil(bisect.next_s_q(curve { { 64, "slower" }, { 128, "unclear" }, { 256, "faster" } }))
  end)

  it("is none for always and never", function()
    assert.is_nil(bisect.next_s_q(curve { { 64, "faster" }, { 128, "faster" } }))
    assert.is_nil(bisect.next_s_q(curve { { 64, "slower" }, { 128, "slower" } }))
    assert.is_nil(bisect.next_s_q(curve { { 64, "slower" } }))
  end)

  it("finds a crossover in as many cells as it takes to halve the interval", function()
    local points, crossover, steps = { { 64, "slower" }, { 8192, "faster" } }, 1000, 0
    while true do
      local s_q = bisect.next_s_q(curve(points))
      if not s_q then break end
      steps = steps + 1
      points[#points + 1] = { s_q, s_q < crossover and "slower" or "faster" }
      table.sort(points, function(a, b) return a[1] < b[1] end)
    end
    assert.equal(6, steps) -- ln(128) / 2^6 < ln(1.1)
    local below, above
    for _, point in ipairs(points) do
      if point[2] == "slower" then below = point[1] elseif not above then above = point[1] end
    end
    assert.is_true(below < 1000 and above >= 1000 and above / below <= 1.1, below .. " " .. above)
  end)
end)

describe("gate_bisect.new", function()
  it("asks for cells between the points of a sweep, and ends", function()
    local fh = require "fewhead"
    local function record(path, s_q, us, verdict)
      local ratio = verdict == "faster" and 2 or 0.5
      return {
        path = path, provider = "fewhead", parity = { status = "pass" }, work = { useful_flops = 1, executed_flops = 1 },
        case = { s_q = s_q, h_q = 8, pattern = "uniform", layout = "vllm", s_kv = 64, topk = 16, d_qk = 512 },
        time = { median_us = us, p05_us = us, p95_us = us, n = 6, l2 = "hot" }, run = { device = "x" },
        verdict = verdict and { verdict = verdict, ratio = ratio, lo = ratio - 0.1, hi = ratio + 0.1, against = "padded" },
      }
    end
    local list, s_kv = {}, 64
    local function add(s_q)
      list[#list + 1] = record("padded", s_q, s_q)
      list[#list + 1] = record("gather", s_q, s_q < 100 and 2 * s_q or s_q / 2, s_q < 100 and "slower" or "faster")
    end
    add(64)
    add(256)
    local more, seen = fh.gate_bisect.new { s_kv = s_kv }, {}
    while true do
      local options = more { records = list }
      if not options then break end
      seen[#seen + 1] = options.s_q
      assert.same({ 64, 16, "uniform", "vllm" }, { options.s_kv, options.topk, options.pattern, options.layout })
      add(options.s_q)
    end
    assert.same({ 128, 91, 108, 99 }, seen)
  end)

  it("asks for the function of a pattern that is one, by its name", function()
    local fh, speedups = require "fewhead", require "spec.decide.speedups"
    local list = speedups { [64] = 0.5, [256] = 2 }
    for _, record in ipairs(list) do record.case.pattern, record.case.pattern_name = "function", "mine" end
    local mine, other = { name = "mine", row = function(row) return { row } end }, function(row) return { row } end
    for _, given in ipairs { { pattern = { "csa", other, mine } }, { pattern = mine } } do
      local options = fh.gate_bisect.new(given) { records = list }
      assert.equal(mine, options.pattern)
      assert.same({ 128 }, { options.s_q, options.pattern_name, options.topk, options.s_kv })
      assert.equal("function", fh.case(options).pattern)
    end
    assert.is_nil(fh.gate_bisect.new({ pattern = { other } }) { records = list })
    assert.is_nil(fh.gate_bisect.new() { records = list })
  end)
end)
