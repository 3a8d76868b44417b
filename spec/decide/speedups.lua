--- Records of padded (100 us a row) and gather, for specs of what is made of a measurement.
--
--     local list = require "spec.decide.speedups" ({ [64] = 0.5, [128] = 2 }, { layout = "contiguous" })
--
-- speedups: gather's by s_q; changes: pattern and layout.
local function record(path, s_q, us, changes)
  return {
    path = path, provider = "fewhead",
    case = { s_q = s_q, s_kv = 8192, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640, seed = 1,
      pattern = changes.pattern or "csa", layout = changes.layout or "vllm" },
    parity = { status = "pass" }, time = { median_us = us, p05_us = us * 0.99, p95_us = us * 1.01, n = 9, l2 = "hot" },
    work = { useful_flops = s_q * 1e6, executed_flops = s_q * (path == "padded" and 8e6 or 1e6), bytes = 1 },
    run = { device = "cpu" },
  }
end

return function(speedups, changes)
  local list, sizes = {}, {}
  for s_q in pairs(speedups) do sizes[#sizes + 1] = s_q end
  table.sort(sizes)
  for _, s_q in ipairs(sizes) do
    list[#list + 1] = record("padded", s_q, 100 * s_q, changes or {})
    list[#list + 1] = record("gather", s_q, 100 * s_q / speedups[s_q], changes or {})
  end
  return list
end
