--- Metrics of a serving run, as `vllm bench serve` defines them.
--
--     local m = fh.metrics.of(run)
--     print(m.ttft_ms.mean, m.tpot_ms.p99, m.total_tok_s)
--
-- TTFT = first output token - sent. TPOT = (latency - TTFT) / (output tokens - 1), of requests with more than one
-- output token. ITL pools the gaps between tokens of all requests. Output throughput = output tokens / wall time, total
-- throughput = (input + output tokens) / wall time. Percentiles interpolate linearly between the sorted samples. Failed
-- requests are left out of all of it and counted. A figure that is not defined (no request, no second token) is nil,
-- which JSON shows as null.
local args = require "fewhead.base.arguments"

local M = {}

--- Fewer samples than this make a 99th percentile a guess: p99_few is then true.
M.enough_for_p99 = 100

--- The percentile q (0 .. 100) of sorted values, by linear interpolation between neighbours (numpy's default); nil
-- without values.
function M.percentile(sorted, q)
  local n = #sorted
  if n == 0 then return nil end
  local at = (n - 1) * q / 100
  local i = math.floor(at)
  local low = sorted[i + 1]
  local high = sorted[math.min(n, i + 2)]
  return low + (high - low) * (at - i)
end

-- mean, p50, p90, p99, n of values; {} with n = 0 where there are none.
local function summary(values)
  local n, sum = #values, 0
  if n == 0 then return { n = 0 } end
  table.sort(values)
  for _, v in ipairs(values) do sum = sum + v end
  return { n = n, mean = sum / n, p50 = M.percentile(values, 50), p90 = M.percentile(values, 90), p99 = M.percentile(values, 99),
    p99_few = n < M.enough_for_p99 or nil }
end

-- The same of { value, count } pairs: equal to the summary of every value written count times.
local function weighted(pairs_of)
  local n, sum = 0, 0
  for _, p in ipairs(pairs_of) do n, sum = n + p[2], sum + p[1] * p[2] end
  if n == 0 then return { n = 0 } end
  table.sort(pairs_of, function(a, b) return a[1] < b[1] end)
  local ends, total = {}, 0
  for i, p in ipairs(pairs_of) do
    total = total + p[2]
    ends[i] = total
  end
  local function value(rank) -- of the sorted samples, from 0
    local lo, hi = 1, #ends
    while lo < hi do
      local middle = math.floor((lo + hi) / 2)
      if ends[middle] > rank then hi = middle else lo = middle + 1 end
    end
    return pairs_of[lo][1]
  end
  local function percentile(q)
    local at = (n - 1) * q / 100
    local i = math.floor(at)
    local low, high = value(i), value(math.min(n - 1, i + 1))
    return low + (high - low) * (at - i)
  end
  return { n = n, mean = sum / n, p50 = percentile(50), p90 = percentile(90), p99 = percentile(99),
    p99_few = n < M.enough_for_p99 or nil }
end

local function throughput(requests, wall_us)
  local input, output = 0, 0
  for _, r in ipairs(requests) do input, output = input + r.input, output + r.output end
  local seconds = wall_us / 1e6
  if seconds <= 0 then return { requests = #requests } end
  return { requests = #requests, requests_s = #requests / seconds, output_tok_s = output / seconds,
    total_tok_s = (input + output) / seconds }
end

-- The middle of a run: from the end of the first tenth of the requests to the end of nine tenths of them; nil under 20
-- requests.
local FEWEST_FOR_STEADY, EDGE = 20, 0.1

local function steady_of(requests)
  local n = #requests
  if n < FEWEST_FOR_STEADY then return nil end
  local by_end = {}
  for i, r in ipairs(requests) do by_end[i] = r end
  table.sort(by_end, function(a, b) return a.end_us < b.end_us end)
  local first, last = math.floor(n * EDGE), n - math.floor(n * EDGE)
  local inside = {}
  for i = first + 1, last do inside[#inside + 1] = by_end[i] end
  local from, to = by_end[first].end_us, by_end[last].end_us
  if to <= from then return nil end
  local window = throughput(inside, to - from)
  window.from_s, window.to_s = from / 1e6, to / 1e6
  return window
end

--- The metrics of what fh.scheduler.run returned: { requests = finished ones, failed = how many failed, duration_s,
-- requests_s, output_tok_s, total_tok_s, ttft_ms, tpot_ms, itl_ms, latency_ms = { n, mean, p50, p90, p99, p99_few }
-- each, steady = { from_s, to_s, requests, requests_s, output_tok_s, total_tok_s } of the middle of the run, nil under
-- 20 requests }.
function M.of(run)
  args.table("metrics.of: run", run, 2)
  local ttft, tpot, latency = {}, {}, {}
  for i, r in ipairs(run.requests) do
    ttft[i], latency[i] = (r.first_us - r.sent_us) / 1e3, (r.end_us - r.sent_us) / 1e3
    if r.output > 1 then tpot[#tpot + 1] = (r.end_us - r.first_us) / (r.output - 1) / 1e3 end
  end
  local gaps = {}
  for i, gap in ipairs(run.gaps) do gaps[i] = { gap[1] / 1e3, gap[2] } end
  local found = throughput(run.requests, run.wall_us)
  found.failed, found.duration_s = #run.failed, run.wall_us / 1e6
  found.ttft_ms, found.tpot_ms, found.itl_ms, found.latency_ms = summary(ttft), summary(tpot), weighted(gaps), summary(latency)
  found.steady = steady_of(run.requests)
  return found
end

return M
