--- Order statistics: the few that timing and reports need, free of assumptions about a distribution.
--
--   local stats = require "fewhead.measure.stats"
--   local sorted = stats.sorted { 12.1, 11.9, 12.4, 12.0, 14.8, 12.2 }
--   print(stats.quantile(sorted, 0.5), stats.median_interval(sorted, 0.95))

local M = {}

--- A sorted copy.
function M.sorted(values)
  local copy = {}
  for i = 1, #values do copy[i] = values[i] end
  table.sort(copy)
  return copy
end

--- The p-quantile (0 <= p <= 1) of a sorted, non-empty list, linear between neighbours (as NumPy and vllm bench serve do).
function M.quantile(sorted, p)
  if #sorted == 0 then error("stats.quantile: got an empty list, wanted at least one value", 2) end
  local at = 1 + (#sorted - 1) * p
  local low = math.floor(at)
  local high = math.min(low + 1, #sorted)
  return sorted[low] + (at - low) * (sorted[high] - sorted[low])
end

--- The median of a list in any order.
function M.median(values) return M.quantile(M.sorted(values), 0.5) end

-- ln n!, exact enough for binomial tails (summed, then kept).
local log_factorials = { [0] = 0 }
local function log_factorial(n)
  for i = #log_factorials + 1, n do log_factorials[i] = log_factorials[i - 1] + math.log(i) end
  return log_factorials[n]
end

--- Rank k (from 1) such that the k-th smallest and k-th largest of n values enclose the median of what they were drawn from with
-- at least `confidence`, and the chance that they do: 1 - 2 P(Binomial(n, 1/2) < k). Holds for any continuous distribution (David
-- and Nagaraja, Order Statistics, 7.1). Too few values for the confidence: 1, and the smaller chance that the whole range has.
function M.median_rank(n, confidence)
  local tail, k = 0, 0
  while true do
    local next_tail = tail + math.exp(log_factorial(n) - log_factorial(k) - log_factorial(n - k) - n * math.log(2))
    if 1 - 2 * next_tail < confidence or k + 1 > (n + 1) / 2 then break end
    tail, k = next_tail, k + 1
  end
  if k == 0 then return 1, 1 - 2 ^ (1 - n) end
  return k, 1 - 2 * tail
end

--- Interval of the median of a sorted, non-empty list: low, high, and the confidence it really has (under what was asked for when
-- there are too few values; 0 for one value).
function M.median_interval(sorted, confidence)
  local k, reached = M.median_rank(#sorted, confidence)
  return sorted[k], sorted[#sorted + 1 - k], reached
end

return M
