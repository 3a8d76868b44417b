--- Trace: recorded request traffic, the prefill chunks an engine makes of it, and what a gate is worth on them.
--
--   local trace = require "fewhead.serve.trace"
--   local chunks = trace.chunks(assert(trace.read("conversation_trace.jsonl")), { max_tokens = 8192 })
--   local rows = trace.score(chunks, { { name = "published", gate = fh.gate.new {} } }, fitted.cost)
--
-- Formats, told apart by the first line:
--   mooncake  JSON Lines: timestamp (ms), input_length, output_length, hash_ids
--   lengths   JSON Lines without hash_ids: input_length, output_length, and maybe timestamp (ms), else all at once
--   azure     CSV: TIMESTAMP,ContextTokens,GeneratedTokens (of 2023, and of 2024, whose times name a zone)
--   burstgpt  CSV: Timestamp (s),Model,Request tokens,Response tokens,Total tokens,Log Type; in its second schema
--             Session ID and Elapsed time too. Rows without tokens are requests that failed: counted and left out.
-- A file is read piece by piece: it takes memory for its requests, whatever its size.

local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local json = require "fewhead.base.json"

local M = {}

-- ---- Reading --------------------------------------------------------------------------------------------------------

-- Tokens of a Mooncake prompt block, one hash id each.
M.block_tokens = 512

local AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
local BURST_HEADERS = {
  "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
  "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
}

-- Larger token counts and clocks are damage, not traffic.
local MOST_TOKENS, MOST_MS = 2 ^ 31 - 1, 2 ^ 53

-- A file of any size is read in bounded memory, or refused by its name.

--- The most requests that a trace may hold, about 200 bytes of memory each.
M.most_requests = 4e6

--- The most distinct prompt blocks that a trace may hold, 40 bytes of memory each.
M.most_blocks = 2 ^ 23

--- The longest line of a trace, bytes.
M.most_line_bytes = 2 ^ 24

local CHUNK = 2 ^ 16 -- bytes read at once

local function whole(name, value, lowest, highest)
  if type(value) ~= "number" or value ~= math.floor(value) or value < lowest then
    return ("%s: got %s, wanted a whole number >= %d"):format(name, args.show(value), lowest)
  end
  if value > highest then return ("%s: got %s, wanted at most %s"):format(name, args.show(value), args.show(highest)) end
end

-- One Mooncake line -> request | nil, reason.
local function mooncake_request(line)
  local value, err = json.decode(line)
  if value == nil then return nil, err end
  if type(value) ~= "table" then return nil, "not a JSON object" end
  local bad = whole("timestamp", value.timestamp, 0, MOST_MS) or whole("input_length", value.input_length, 1, MOST_TOKENS)
    or whole("output_length", value.output_length, 0, MOST_TOKENS)
  if bad then return nil, bad end
  local blocks = math.ceil(value.input_length / M.block_tokens)
  local ids = value.hash_ids
  if type(ids) ~= "table" or #ids ~= blocks then
    return nil, ("hash_ids: got %s, wanted %d ids, one for every %d tokens of input_length %d"):format(
      type(ids) == "table" and ("a list of %d"):format(#ids) or args.show(ids), blocks, M.block_tokens, value.input_length)
  end
  for i = 1, blocks do
    bad = whole(("hash_ids[%d]"):format(i), ids[i], 0, MOST_MS)
    if bad then return nil, bad end
  end
  return { t_ms = value.timestamp, input = value.input_length, output = value.output_length, hash_ids = ids }
end

-- Days since 1970-01-01 of a date of the Gregorian calendar (H. Hinnant, "chrono-compatible low-level date
-- algorithms").
local function days_from_civil(year, month, day)
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local year_of_era = year - era * 400
  local day_of_year = math.floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + day - 1
  return era * 146097 + year_of_era * 365 + math.floor(year_of_era / 4) - math.floor(year_of_era / 100) + day_of_year - 719468
end

local DAYS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

-- Minutes east of Greenwich of "", "Z" or "+05:30"; nil for another text.
local function zone_minutes(text)
  if text == "" or text == "Z" then return 0 end
  local sign, hours, minutes = text:match("^([+-])(%d%d):(%d%d)$")
  if not sign or tonumber(hours) > 23 or tonumber(minutes) > 59 then return nil end
  return (hours * 60 + minutes) * (sign == "+" and 1 or -1)
end

-- "2023-11-16 18:17:03.9799600" or "2024-05-10 00:00:00.009930+00:00" -> milliseconds since 1970, or nil. Without a
-- zone the time is taken for UTC.
local function timestamp_ms(text)
  local y, mo, d, h, mi, s, rest = text:match("^(%d%d%d%d)%-(%d%d)%-(%d%d)[ T](%d%d):(%d%d):(%d%d)(.*)$")
  if not y then return nil end
  local fraction, zone = rest:match("^(%.%d+)(.*)$")
  zone = zone_minutes(zone or rest)
  if not zone then return nil end
  y, mo, d, h, mi, s = tonumber(y), tonumber(mo), tonumber(d), tonumber(h), tonumber(mi), tonumber(s)
  local leap = (y % 4 == 0 and y % 100 ~= 0) or y % 400 == 0
  if mo < 1 or mo > 12 or h > 23 or mi > 59 or s > 59 then return nil end
  if d < 1 or d > DAYS[mo] + (mo == 2 and leap and 1 or 0) then return nil end
  return (((days_from_civil(y, mo, d) * 24 + h) * 60 + mi - zone) * 60 + s) * 1e3 + (tonumber(fraction) or 0) * 1e3
end

-- One Azure row -> request | nil, reason.
local function azure_request(line)
  local stamp, context, generated = line:match("^([^,]*),([^,]*),([^,]*)$")
  if not stamp then return nil, "wanted 3 columns: " .. AZURE_HEADER end
  local t_ms = timestamp_ms(stamp)
  if not t_ms then return nil, ("TIMESTAMP: got %s, wanted YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]"):format(args.show(stamp)) end
  local function count(text) return text:find("^%d+$") and tonumber(text) or text end
  local bad = whole("ContextTokens", count(context), 1, MOST_TOKENS) or whole("GeneratedTokens", count(generated), 0, MOST_TOKENS)
  if bad then return nil, bad end
  return { t_ms = t_ms, input = tonumber(context), output = tonumber(generated) }
end

-- One line of lengths -> request | nil, reason.
local function lengths_request(line)
  local value, err = json.decode(line)
  if value == nil then return nil, err end
  if type(value) ~= "table" then return nil, "not a JSON object" end
  if value.hash_ids ~= nil then return nil, "hash_ids: got some, but the first line has none" end
  local t_ms = value.timestamp
  local bad = t_ms ~= nil and whole("timestamp", t_ms, 0, MOST_MS) or whole("input_length", value.input_length, 1, MOST_TOKENS)
    or whole("output_length", value.output_length, 0, MOST_TOKENS)
  if bad then return nil, bad end
  return { t_ms = t_ms or 0, input = value.input_length, output = value.output_length }
end

-- What a row of BurstGPT that failed is read as.
local FAILED = {}

-- The parser of a BurstGPT header: a row -> request | FAILED | nil, reason.
local function burst_parser(header)
  local columns, names = {}, {}
  for name in header:gmatch("[^,]+") do
    names[#names + 1] = name
    columns[name] = #names
  end
  return function(line)
    local fields = {}
    for field in (line .. ","):gmatch("([^,]*),") do fields[#fields + 1] = field end
    if #fields ~= #names then return nil, ("got %d columns, wanted %d: %s"):format(#fields, #names, header) end
    local function number(name, pattern)
      local text = fields[columns[name]]
      return text:find(pattern) and tonumber(text) or text
    end
    local seconds = number("Timestamp", "^%d+%.?%d*$")
    if type(seconds) ~= "number" or seconds * 1e3 > MOST_MS then
      return nil, ("Timestamp: got %s, wanted seconds"):format(args.show(seconds))
    end
    local input, output = number("Request tokens", "^%d+$"), number("Response tokens", "^%d+$")
    if input == 0 then return FAILED end
    local bad = whole("Request tokens", input, 1, MOST_TOKENS) or whole("Response tokens", output, 0, MOST_TOKENS)
    if bad then return nil, bad end
    if output == 0 then return FAILED end
    return { t_ms = seconds * 1e3, input = input, output = output }
  end
end

-- Format and parser of a file that begins with this line; nil where it is none of them.
local function format_of(line)
  if line == AZURE_HEADER then return "azure", azure_request, true end
  for _, header in ipairs(BURST_HEADERS) do
    if line == header then return "burstgpt", burst_parser(header), true end
  end
  if not line:find("^%s*{") then return nil end
  local first = json.decode(line)
  if type(first) == "table" and first.input_length ~= nil and first.hash_ids == nil then return "lengths", lengths_request end
  return "mooncake", mooncake_request
end

-- Sorts by time where a trace does not stand in order of arrival; equal times keep their order.
local function sort_by_time(requests)
  local place = {}
  for i, request in ipairs(requests) do place[request] = i end
  table.sort(requests, function(a, b)
    if a.t_ms ~= b.t_ms then return a.t_ms < b.t_ms end
    return place[a] < place[b]
  end)
end

-- Returns mark(request): sets request.uncached, the part of its prompt that no earlier request brought in, under an
-- infinite prefix cache: the longest leading run of block ids already seen is free. At least one token is always
-- computed, as engines do: the last one gives the logits. mark returns nil where there are more distinct blocks than a
-- trace may hold.
local function prefix_cache()
  local seen, blocks = {}, 0
  return function(request)
    local ids, hits = request.hash_ids, 0
    while ids and hits < #ids and seen[ids[hits + 1]] do hits = hits + 1 end
    for i = hits + 1, ids and #ids or 0 do
      if not seen[ids[i]] then
        seen[ids[i]], blocks = true, blocks + 1
      end
    end
    request.uncached = math.max(1, request.input - hits * M.block_tokens)
    request.hash_ids = nil
    return blocks <= M.most_blocks or nil
  end
end

-- Calls line(number, text) for each line of an open file, without its end; a line that is too long comes as number,
-- nil. Holds one line and one piece of the file at a time. Stops at the first value that line returns, and returns it;
-- nil, err for what cannot be read.
local function each_line(handle, line)
  local number, parts, length, skipping = 0, {}, 0, false
  local function hand_over()
    number = number + 1
    local text = not skipping and table.concat(parts):gsub("\r$", "") or nil
    if number == 1 and text then text = text:gsub("^\239\187\191", "") end
    parts, length, skipping = {}, 0, false
    return line(number, text)
  end
  while true do
    local piece, err = handle:read(CHUNK)
    if err then return nil, err end
    if not piece then break end
    local from = 1
    while true do
      local stop = piece:find("\n", from, true)
      length = length + (stop or #piece + 1) - from
      if length > M.most_line_bytes then parts, skipping = {}, true end
      if not skipping then parts[#parts + 1] = piece:sub(from, (stop or 0) - 1) end
      if not stop then break end
      local result = hand_over()
      if result ~= nil then return result end
      from = stop + 1
    end
  end
  if length > 0 then return hand_over() end
end

local Trace = {}
Trace.__index = Trace

--- Read a whole trace. The format is told from the first line; CRLF, a byte order mark, blank lines and a
-- missing last line end are fine.
-- Returns { file =, format = "mooncake" | "lengths" | "azure" | "burstgpt", requests = { { t_ms = from the first, input
-- =, output =, uncached = tokens }, .. } by time, failed = rows of requests that failed (BurstGPT), late = requests
-- that stood behind later ones and were sorted in, skipped = bad lines left out, first_skipped = "file:line: reason" }.
-- Mooncake requests out of order are refused: their prefix cache is filled in that order. options.skip_bad: count bad
-- lines and go on. Without it a bad line is nil, "file:line: reason", and nothing is half read.
function M.read(file, options)
  args.string("trace.read: file", file, 2)
  options = args.options("trace.read", options or {}, { "skip_bad" }, 2)
  local handle, err = io.open(file, "rb")
  if not handle then return nil, err end

  local trace = setmetatable({ file = file, requests = {}, skipped = 0, failed = 0, late = 0 }, Trace)
  local requests, parse, last, mark = trace.requests, nil, -math.huge, prefix_cache()
  -- The reason to stop at this line, or nil.
  local function take(number, line)
    if line and line:find("^%s*$") then return nil end
    if not parse then
      local header
      if line then trace.format, parse, header = format_of(line) end
      if not parse then
        return ('%s:%d: no trace: wanted a JSON line, {"input_length": .., the Azure header %s, or the BurstGPT header '
          .. "%s"):format(file, number, AZURE_HEADER, BURST_HEADERS[1])
      end
      if header then return nil end
    end
    local request, reason
    if line then request, reason = parse(line)
    else reason = ("a line of more than %d bytes"):format(M.most_line_bytes)
    end
    if request == FAILED then
      trace.failed = trace.failed + 1
      return nil
    end
    if request and request.t_ms < last then
      if request.hash_ids then -- the prefix cache is filled in this order
        request, reason = nil, "earlier than the request before it; a trace stands in order of arrival"
      else
        trace.late = trace.late + 1
      end
    end
    if request then
      last = math.max(last, request.t_ms)
      requests[#requests + 1] = request
      if not mark(request) then
        return ("%s: more than %d distinct blocks, wanted at most that: cut the file"):format(file, M.most_blocks)
      end
      if #requests > M.most_requests then
        return ("%s: more than %d requests, wanted at most that: cut the file"):format(file, M.most_requests)
      end
      return nil
    end
    local message = ("%s:%d: %s"):format(file, number, reason)
    if not options.skip_bad then return message end
    trace.skipped = trace.skipped + 1
    trace.first_skipped = trace.first_skipped or message
  end

  local ok, stop, failure = pcall(each_line, handle, take)
  handle:close()
  if not ok and stop ~= "not enough memory" then error(stop, 0) end -- Ctrl-C
  if not ok then return nil, ("%s: %s"):format(file, stop) end
  if failure then return nil, ("%s: %s"):format(file, failure) end
  if stop then return nil, stop end
  if #requests == 0 then return nil, ("%s: no request in it"):format(file) end
  if trace.late > 0 then sort_by_time(requests) end
  local start = requests[1].t_ms
  for _, request in ipairs(requests) do request.t_ms = request.t_ms - start end
  return trace
end

--- Quantile by nearest rank of one field ("input", "output", "uncached"), q in 0 .. 1.
function Trace:quantile(field, q)
  args.enum("trace:quantile: field", field, { "input", "output", "uncached" }, 2)
  args.number("trace:quantile: q", q, 0, 1, 2)
  local values = {}
  for i, request in ipairs(self.requests) do values[i] = request[field] end
  table.sort(values)
  return values[math.max(1, math.ceil(q * #values))]
end

--- Sum of one field over the requests.
function Trace:total(field)
  args.enum("trace:total: field", field, { "input", "output", "uncached" }, 2)
  local sum = 0
  for _, request in ipairs(self.requests) do sum = sum + request[field] end
  return sum
end

function Trace:__tostring()
  local input, uncached = self:total("input"), self:total("uncached")
  local text = "%s: %s, %d requests over %.0f s, prompts of %.0f tokens, %.1f %% of them in the prefix cache; "
    .. "the rest a request p50 %d, p90 %d, p99 %d"
  text = text:format(self.file, self.format, #self.requests, self.requests[#self.requests].t_ms / 1e3, input,
    100 * (1 - uncached / input), self:quantile("uncached", 0.5), self:quantile("uncached", 0.9), self:quantile("uncached", 0.99))
  if self.failed > 0 then text = ("%s; %d requests failed and are left out"):format(text, self.failed) end
  if self.late > 0 then text = ("%s; %d requests out of order, sorted by time"):format(text, self.late) end
  if self.skipped > 0 then text = ("%s; %d bad lines left out, the first: %s"):format(text, self.skipped, self.first_skipped) end
  return text
end

-- ---- Chunks ---------------------------------------------------------------------------------------------------------

-- vLLM's default max_num_batched_tokens for serving: the most rows of one step.
M.max_tokens = 8192

-- Prefill speed of the modelled engine, tokens a second: the 32k cold prompt that vLLM PR #57673 reports (3.22 s on 8 x
-- H20).
M.tokens_per_s = 32768 / 3.22

-- Share of that speed the trace asks for on average: the trace's clock is stretched to it, since a trace recorded on a
-- whole cluster would drown one engine. At 1 and above the queue never empties and every chunk is full.
M.load = 0.7

-- A number, or false for none.
local LOAD = {}
function LOAD.check(value, row)
  if value == false then return false end
  return option.kinds.NUMBER.check(value, row)
end
option.kinds.LOAD = LOAD

--- The options of M.chunks (fewhead.base.option).
M.chunk_rows = option.rows("trace.chunks", {
  { "--max-tokens", "INTEGER", "rows of a chunk at most", default = M.max_tokens, lo = 1, hi = MOST_TOKENS },
  { "--decode-rows", "INTEGER", "of these, rows that running decodes take", default = 0, lo = 0 },
  { "--tokens-per-s", "NUMBER", "prompt tokens the engine computes a second", default = M.tokens_per_s, lo = 1, hi = 1e12,
    with = { pack = { true } } },
  { "--prefix-cache", nil, "compute uncached tokens alone", default = true },
  { "--load", "LOAD", "share of that speed the trace is stretched to", default = M.load, lo = 1e-6, hi = 1e6,
    with = { pack = { true } } },
  { "--pack", nil, "several requests a chunk", default = true },
})

local Chunks = {}
Chunks.__index = Chunks

--- The prefill chunks of a trace: one engine, first come first served, steps one after the other. A step takes the
-- prompt tokens that wait when it starts, in order of arrival and across requests, up to max_tokens less decode_rows,
-- and lasts its rows divided by tokens_per_s. Arrivals keep their order and proportions; their clock is stretched so
-- that the mean demand is `load`. options: max_tokens; prefix_cache (true: only uncached tokens are computed);
-- decode_rows (rows of each step that running decodes take, 0); tokens_per_s; load (false: the trace's own clock);
-- pack (true; false: every request alone, in chunks of max_tokens). Returns { counts = { { s_q =, count = }, .. by
-- rising s_q }, chunks =, rows =, requests =, model = the assumptions in one line }.
function M.chunks(trace, options)
  if getmetatable(trace) ~= Trace then
    error(("trace.chunks: trace: got %s, wanted what trace.read returned"):format(args.show(trace)), 2)
  end
  local o = option.table("trace.chunks", options, M.chunk_rows)
  local most, decode_rows, speed, cached, pack, load = o.max_tokens, o.decode_rows, o.tokens_per_s, o.prefix_cache, o.pack, o.load
  if decode_rows >= most then
    error(("trace.chunks: decode_rows: got %s, wanted a whole number in 0 .. %d"):format(args.show(decode_rows), most - 1), 2)
  end

  local field = cached and "uncached" or "input"
  local budget, requests = most - decode_rows, trace.requests
  local count = {}
  local function add(rows) count[rows] = (count[rows] or 0) + 1 end

  local stretch = 1
  if not pack then
    for _, request in ipairs(requests) do
      local left = request[field]
      while left > 0 do
        add(math.min(left, budget))
        left = left - budget
      end
    end
  else
    local span = requests[#requests].t_ms / 1e3
    if load and span > 0 then stretch = trace:total(field) / speed / load / span end
    local now, arrived, head, left = 0, 0, 1, requests[1][field] -- head: the request being computed; left: its tokens still to do
    while head <= #requests do
      now = math.max(now, requests[head].t_ms / 1e3 * stretch)
      while arrived < #requests and requests[arrived + 1].t_ms / 1e3 * stretch <= now do arrived = arrived + 1 end
      local rows = 0
      while head <= arrived and rows < budget do
        local take = math.min(left, budget - rows)
        rows, left = rows + take, left - take
        if left == 0 then
          head = head + 1
          left = requests[head] and requests[head][field]
        end
      end
      add(rows)
      now = now + rows / speed
    end
  end

  local chunks = setmetatable({ counts = {}, chunks = 0, rows = 0, requests = #requests, max_tokens = most }, Chunks)
  for s_q, n in pairs(count) do
    chunks.counts[#chunks.counts + 1] = { s_q = s_q, count = n }
    chunks.chunks, chunks.rows = chunks.chunks + n, chunks.rows + n * s_q
  end
  table.sort(chunks.counts, function(a, b) return a.s_q < b.s_q end)
  local queue = "every request alone"
  if pack then
    queue = ("one engine, first come first served, requests packed together, %.0f prompt tokens/s, %s"):format(speed,
      load and ("arrivals stretched x%.2f to a load of %.2f"):format(stretch, load) or "arrivals as recorded")
  end
  chunks.model = ("%s, %s, at most %d rows a chunk%s"):format(queue, cached and "infinite prefix cache" or "no prefix cache",
    budget, decode_rows > 0 and (" (%d less %d for running decodes)"):format(most, decode_rows) or "")
  return chunks
end

function Chunks:__tostring()
  return ("%d chunks, %d rows of %d requests: %s"):format(self.chunks, self.rows, self.requests, self.model)
end

--- What gates are worth on chunks: fh.score's score, where a reader of traces looks for it.
function M.score(...) return require("fewhead.decide.score").score(...) end

return M
