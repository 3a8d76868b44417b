--- Workload: the requests that a serving engine gets, and when.
--
--     local w = fh.workload.get "C16x8kx48"                       -- published: 48 prompts of 8192, 16 at a time
--     local mine = fh.workload.closed { concurrency = 4, input = { uniform = { 1000, 9000 } }, count = 64 }
--     local real = fh.workload.trace(assert(fh.trace.read("trace.jsonl")), { rate = 2 })
--
-- A workload is { name =, kind = "closed" | "open", concurrency = (closed), requests = { { input =, output =, cached =,
-- sent_us = (open) }, .. } }. input and output are tokens; cached are the tokens of the prompt that a prefix cache
-- holds when the request comes; sent_us are microseconds from the start. The same options give the same requests on
-- every machine.
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"

local ffi, C = F.ffi, F.C

local M = {}

--- Most tokens of a prompt or an output.
local MOST = 2 ^ 31 - 1

-- ---- Numbers drawn from a seed --------------------------------------------------------------------------------------

local Draw = {}
Draw.__index = Draw
local BLOCK = 256 -- words fetched at once
local STREAM = { input = 64, output = 65, arrival = 66, decode = 67 } -- fh.case's streams lie below 64

--- Uniform numbers in (0, 1): words of the library's generator (fh_random_u32) of a seed and a stream ("input",
-- "output", "arrival" or "decode"). draw() is the next one.
function M.draw(seed, stream)
  local words = ffi.new("uint32_t[?]", BLOCK)
  return setmetatable({ seed = seed, stream = STREAM[stream], first = 0, at = BLOCK, words = words }, Draw)
end

function Draw:__call()
  if self.at == BLOCK then
    assert(F.check(C.fh_random_u32(self.seed, self.stream, self.first, BLOCK, self.words)))
    self.first, self.at = self.first + BLOCK, 0
  end
  local word = tonumber(self.words[self.at])
  self.at = self.at + 1
  return (word + 0.5) / 2 ^ 32
end

-- A normal number by Box and Muller.
local function normal(draw)
  return math.sqrt(-2 * math.log(draw())) * math.cos(2 * math.pi * draw())
end

-- ---- Lengths --------------------------------------------------------------------------------------------------------

local KINDS = { "uniform", "lognormal", "choices" }
local LENGTH = "a whole number >= 1, { uniform = { lo, hi } }, { lognormal = { median, sigma }, most = tokens } "
  .. "or { choices = list }"

-- The function that draws one length. what: for messages.
local function length_of(what, value, level)
  if type(value) == "number" then
    args.integer(what, value, 1, MOST, level + 1)
    return function() return value end
  end
  local kind
  for _, one in ipairs(KINDS) do
    if type(value) == "table" and value[one] ~= nil then kind = one end
  end
  if not kind then error(("%s: got %s, wanted %s"):format(what, args.show(value), LENGTH), level + 1) end
  args.options(what, value, { kind, kind == "lognormal" and "most" or nil }, level + 1)
  local given = args.list(("%s.%s"):format(what, kind), value[kind], kind == "choices" and 1 or 2, kind ~= "choices" and 2 or nil,
    level + 1)
  if kind == "lognormal" then
    local median = args.number(what .. ".lognormal[1]", given[1], 1, MOST, level + 1)
    local sigma = args.number(what .. ".lognormal[2]", given[2], 0, 10, level + 1)
    local most = args.integer(what .. ".most", value.most or MOST, 1, MOST, level + 1)
    return function(draw) return math.max(1, math.min(most, math.floor(median * math.exp(sigma * normal(draw)) + 0.5))) end
  end
  for i, tokens in ipairs(given) do args.integer(("%s.%s[%d]"):format(what, kind, i), tokens, 1, MOST, level + 1) end
  if kind == "choices" then return function(draw) return given[1 + math.floor(draw() * #given)] end end
  if given[2] < given[1] then
    error(("%s.uniform: got %s, wanted lo <= hi"):format(what, args.show(given)), level + 1)
  end
  return function(draw) return given[1] + math.floor(draw() * (given[2] - given[1] + 1)) end
end

-- Requests with drawn lengths. A prompt begins with one of `prefixes` shared beginnings of `prefix` tokens, taken in
-- turn; the first request with a beginning computes it, later ones find it in the prefix cache.
local function requests_of(what, o, level)
  local count = args.integer(what .. ": count", o.count, 1, MOST, level + 1)
  local input = length_of(what .. ": input", o.input, level + 1)
  local output = length_of(what .. ": output", args.given(o.output, 128), level + 1)
  local seed = args.integer(what .. ": seed", o.seed or 0, 0, nil, level + 1)
  local prefix = args.integer(what .. ": prefix", o.prefix or 0, 0, MOST, level + 1)
  local prefixes = args.integer(what .. ": prefixes", o.prefixes or 1, 1, MOST, level + 1)
  local draw_input, draw_output = M.draw(seed, "input"), M.draw(seed, "output")
  local list, seen = {}, {}
  for i = 1, count do
    local which = (i - 1) % prefixes
    local tokens = input(draw_input)
    local cached = seen[which] and math.min(prefix, tokens - 1) or 0 -- the last token is always computed: it gives the logits
    seen[which] = true
    list[i] = { input = tokens, output = output(draw_output), cached = cached }
  end
  return list, seed
end

local LENGTHS = { "name", "input", "output", "count", "seed", "prefix", "prefixes" }

local function known(more)
  local list = {}
  for _, key in ipairs(LENGTHS) do list[#list + 1] = key end
  for _, key in ipairs(more) do list[#list + 1] = key end
  return list
end

local Workload = { __name = "workload" }
Workload.__index = Workload

local function new(fields) return setmetatable(fields, Workload) end

--- true for what the functions here return.
function M.is(value) return getmetatable(value) == Workload end

-- ---- Kinds ----------------------------------------------------------------------------------------------------------

--- A closed loop, as `vllm bench serve --max-concurrency` runs it: `concurrency` requests are in flight, and each one
-- that ends lets the next one be sent. Options: concurrency (>= 1; more than `count` is fine), count, input, output
-- (default 128), seed, name; prefix, prefixes: tokens of a shared beginning of the prompts, and how many such
-- beginnings there are. input and output: a whole number, { uniform = { lo, hi } }, { lognormal = { median, sigma },
-- most = tokens } or { choices = list }.
function M.closed(options)
  local o = args.options("workload.closed", options, known { "concurrency" }, 2)
  local concurrency = args.integer("workload.closed: concurrency", o.concurrency, 1, MOST, 2)
  local list = requests_of("workload.closed", o, 2)
  return new { name = o.name or ("closed loop, %d at a time"):format(concurrency), kind = "closed", concurrency = concurrency,
    requests = list }
end

--- Requests alone, one after the other. Options: input, output (default 1), count (default 3), seed, name.
function M.cold(options)
  local o = args.options("workload.cold", options, { "name", "input", "output", "count", "seed" }, 2)
  local list = requests_of("workload.cold", { input = o.input, output = o.output or 1, count = o.count or 3, seed = o.seed }, 2)
  return new { name = o.name or "cold", kind = "closed", concurrency = 1, requests = list }
end

--- Given requests, each sent when the one before it is done: list = { { input, output }, .. }.
function M.one_by_one(name, list)
  args.string("workload.one_by_one: name", name, 2)
  args.list("workload.one_by_one: list", list, 1, nil, 2)
  local requests = {}
  for i, pair in ipairs(list) do
    local what = ("workload.one_by_one: list[%d]"):format(i)
    args.list(what, pair, 2, 2, 2)
    local input = args.integer(what .. "[1]", pair[1], 1, MOST, 2)
    requests[i] = { input = input, output = args.integer(what .. "[2]", pair[2], 1, MOST, 2), cached = 0 }
  end
  return new { name = name, kind = "closed", concurrency = 1, requests = requests }
end

--- An open loop: requests are sent at random times (Poisson arrivals, `rate` a second on average), whatever the engine
-- does. Options: rate (> 0, requests a second), and those of closed but concurrency.
function M.open(options)
  local o = args.options("workload.open", options, known { "rate" }, 2)
  local rate = args.number("workload.open: rate", o.rate, 1e-9, 1e9, 2)
  local list, seed = requests_of("workload.open", o, 2)
  local draw, at = M.draw(seed, "arrival"), 0
  for _, request in ipairs(list) do
    at = at - math.log(draw()) / rate * 1e6
    request.sent_us = at
  end
  return new { name = o.name or ("open loop, %g a second"):format(rate), kind = "open", requests = list }
end

--- One request of `first` tokens, and one of `second` tokens sent `after_us` later. Options: first, second, after_us
-- (>= 0), output (default 1), name.
function M.behind(options)
  local o = args.options("workload.behind", options, { "first", "second", "after_us", "output", "name" }, 2)
  local first = args.integer("workload.behind: first", o.first, 1, MOST, 2)
  local second = args.integer("workload.behind: second", o.second, 1, MOST, 2)
  local after = args.number("workload.behind: after_us", o.after_us, 0, nil, 2)
  local output = args.integer("workload.behind: output", o.output or 1, 1, MOST, 2)
  return new { name = o.name or ("%d tokens, then %d"):format(first, second), kind = "open", requests = {
    { input = first, output = output, cached = 0, sent_us = 0 }, { input = second, output = output, cached = 0, sent_us = after },
  } }
end

--- The requests of a trace (fh.trace.read) at their own times. Options: rate, a factor on the arrival rate (default 1);
-- load, instead: the trace's clock is stretched so that its uncached prompt tokens come at load * tokens_per_s a
-- second; from, count: a slice, counted from 1; prefix_cache (default true: what the trace marks as cached is not
-- computed); name.
function M.trace(trace, options)
  args.table("workload.trace: trace", trace, 2)
  local o = args.options("workload.trace", options,
    { "rate", "load", "tokens_per_s", "from", "count", "prefix_cache", "name" }, 2)
  if o.rate and o.load then error("workload.trace: rate and load: got both, wanted one of them", 2) end
  if o.tokens_per_s and not o.load then error("workload.trace: tokens_per_s: has no effect without load", 2) end
  local total = #trace.requests
  local from = args.integer("workload.trace: from", o.from or 1, 1, total, 2)
  local count = args.integer("workload.trace: count", o.count or total - from + 1, 1, total - from + 1, 2)
  local cache = args.boolean("workload.trace: prefix_cache", args.given(o.prefix_cache, true), 2)
  local stretch = 1 / args.number("workload.trace: rate", o.rate or 1, 1e-9, 1e9, 2)
  local list, tokens, start = {}, 0, trace.requests[from].t_ms
  for i = 1, count do
    local r = trace.requests[from + i - 1]
    local cached = cache and r.input - r.uncached or 0
    list[i] = { input = r.input, output = r.output, cached = cached, sent_us = (r.t_ms - start) * 1e3 }
    tokens = tokens + r.input - cached
  end
  if o.load then
    local load = args.number("workload.trace: load", o.load, 1e-6, 1e6, 2)
    local speed = args.number("workload.trace: tokens_per_s", o.tokens_per_s, 1, 1e12, 2)
    local span = list[count].sent_us / 1e6
    stretch = span > 0 and tokens / speed / load / span or 1
  end
  for _, request in ipairs(list) do request.sent_us = request.sent_us * stretch end
  return new { name = o.name or trace.file, kind = "open", requests = list, stretch = stretch }
end

--- Open workloads together, by time of arrival. name: of the whole.
function M.mix(name, workloads)
  args.string("workload.mix: name", name, 2)
  args.list("workload.mix: workloads", workloads, 1, nil, 2)
  local list = {}
  for i, one in ipairs(workloads) do
    if not M.is(one) or one.kind ~= "open" then
      local got = M.is(one) and "a closed one" or args.show(one)
      error(("workload.mix: workloads[%d]: got %s, wanted an open workload"):format(i, got), 2)
    end
    for _, request in ipairs(one.requests) do list[#list + 1] = request end
  end
  local place = {}
  for i, request in ipairs(list) do place[request] = i end
  table.sort(list, function(a, b)
    if a.sent_us ~= b.sent_us then return a.sent_us < b.sent_us end
    return place[a] < place[b]
  end)
  return new { name = name, kind = "open", requests = list }
end

function Workload:__tostring()
  local input, output, cached = 0, 0, 0
  for _, r in ipairs(self.requests) do input, output, cached = input + r.input, output + r.output, cached + r.cached end
  local n = #self.requests
  return ("%s: %d request%s, %.0f prompt tokens (%.0f in the prefix cache), %.0f output tokens%s"):format(self.name, n,
    n == 1 and "" or "s", input, cached, output, self.kind == "closed" and (", at most %d at a time"):format(self.concurrency) or
    (", sent over %.1f s"):format(self.requests[n].sent_us / 1e6))
end

-- ---- By name --------------------------------------------------------------------------------------------------------

-- The workloads of vLLM PR #57673 by name, and a few more.
local NAMED = {
  ["C16x8kx48"] = function() return M.closed { name = "C16x8kx48", concurrency = 16, input = 8192, output = 128, count = 48 } end,
  ["C4x32kx12"] = function() return M.closed { name = "C4x32kx12", concurrency = 4, input = 32768, output = 128, count = 12 } end,
  ["cold32k"] = function() return M.cold { name = "cold32k", input = 32768 } end,
  ["cold128k"] = function() return M.cold { name = "cold128k", input = 131072 } end,
  -- The second request is sent when the first one is done.
  ["short-after-8k"] = function() return M.one_by_one("short-after-8k", { { 8192, 1 }, { 512, 1 } }) end,
}

--- Sorted names that get() knows.
function M.names()
  local list = {}
  for name in pairs(NAMED) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- A workload by name; an unknown one raises with the names there are.
function M.get(name, level)
  args.enum("workload", name, M.names(), level or 2)
  return NAMED[name]()
end

return M
