--- Patterns: which KV rows each query row of a prefill chunk attends to, as an engine would hand them over.
--
--     local pattern = require "fewhead.case.pattern"
--     local p = pattern.make("csa", { s_q = 2048, ratio = 2, prior = 6144, seed = 1 })
--     print(p.s_kv, p.topk, p.topk_length[0])    --> 6271  640  640
--
-- Names, and the options that each of them takes beside the common ones; any other is refused:
--   uniform       s_kv (8192), topk (640), repeats, holes: keys drawn evenly from all KV rows. Without repeats a row is the
--                 head of a random permutation; where topk > s_kv the rest is filled with invalid values. repeats = true draws
--                 with replacement.
--   window        window (128), requests, prior: the last `window` tokens up to and with the row's own.
--   csa           index_topk (512), window (128), ratio (1), holes (0.01), requests, prior: compressed sparse attention. A row
--                 at position pos picks index_topk of the first (pos + 1) / ratio compressed rows (all of them while they are
--                 that few), drawn afresh for every row, then come its window rows, then -1. window = 0 and ratio 1 is an index
--                 over tokens alone.
--   local         csa, but a row keeps `keep` (0.9) of the picks of the row before it: how real selections behave.
--   blocks        index_topk (512), window (128), ratio (1), block (8), keep (0.9), holes (0), requests, prior: picks inside
--                 blocks of `block` neighbouring compressed rows, in rising order. A row has 2048 candidate blocks, of which it
--                 keeps `keep` from the row before, and picks among their rows as `local` does: DeepSeek-V4.1's later layers.
--   pools         index_topk (2048 rows), block (4), keep (0.9), requests, prior: picks of whole pools of `block` neighbouring
--                 tokens, index_topk / block of them, each listed row by row; then the tail, the tokens behind the last whole
--                 pool; then -1. topk is index_topk + block - 1: 2051 for GLM-5.3-Flash.
--   all           window (128), ratio (128), requests, prior: every compressed row that the row may see, then its window:
--                 DeepSeek-V4's layers of ratio 128. topk is as wide as the chunk's last row needs.
--   dense_prefix  requests, prior: the first topk tokens up to and with the row's own, in order: everything is shared.
--   file          indices: captured lists, an int32 .npy [s_q, topk] or [s_q, 1, topk], or raw int32 beside FILE.json (see
--                 fh.npy). s_q takes the first rows of the file; topk is its width; s_kv defaults to the header's, else
--                 the largest index + 1.
-- A pattern may also be a function of yours in place of a name, or { row = f, name = "mine" }: f(row, sizes) returns the list
-- of KV rows of row 0 .. s_q - 1; -1 is a hole. topk is the longest list unless said, s_kv the largest KV row + 1. { fill = f,
-- name = "mine" }: f(indices, sizes) writes to an int32 tensor [s_q, topk] on the CPU that is -1 throughout; it needs topk.
-- sizes is { s_q =, s_kv =, topk =, seed = }, as far as they are given. Such a pattern is called "function" in records, and
-- runs in this process.
-- All of them read: s_q, s_kv, topk, seed (0), invalid_rows (0; this share of rows lists invalid values
-- alone), and lengths, what topk_length says: "natural" (the default: what the pattern itself fills; none for uniform and
-- file), "none" (no topk_length), "uniform" (drawn from 0 .. topk), or a whole number for every row.
--
-- A chunk may pack several requests: `requests` is their number (rows dealt evenly) or the list of their row counts; `prior`,
-- one number or a list, is how many tokens of each are in the context already. KV memory holds the requests one after the
-- other, M rows each: first the compressed rows, then the tokens that windows can reach. `holes` is the chance of each pick to
-- be -1 inside the list (uniform: to be any invalid value).
local bit = require "bit"
local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local npy = require "fewhead.base.npy"
local option = require "fewhead.base.option"
local F = require "fewhead.base.ffi"

local M = {}

local floor, min, max = math.floor, math.min, math.max
local given = args.given

-- The lists of DeepSeek-V4.1-Flash, the model that the defaults describe.
local INDEX_TOPK, WINDOW = 512, 128
-- Tokens that vLLM prefills at once, unless told otherwise; the table that `uniform` draws from is as large.
local BATCHED_TOKENS = 8192
-- Neighbours share 0.8 to 0.9 of their picks in captured lists of V3.2 and GLM-5.
local KEEP = 0.9
-- DeepSeek-V4.1's layer 20 publishes so many candidate blocks a row, of so many rows each.
local BLOCKS, BLOCK = 2048, 8
-- GLM-5.3-Flash: 512 pools of 4 tokens.
local POOL, POOLED = 4, 2048
-- DeepSeek-V4's layers that attend to every compressed row.
local ALL_RATIO = 128
-- Enough that most lists have a hole, so that no kernel gets away with taking a list for dense; too few to change its cost.
local HOLES = 0.01
-- FlashMLA's test fills lists with these; s_kv itself, the first index that is out of range, joins them.
local INVALID = { -2147483648, -123456, -1, 114514, 1919810, 2147480000, 2147483647 }

local INT32_MAX = 2147483647
-- Entries of one array on this side, 1 GiB: all lists together, or the KV rows that lists without repeats are drawn from.
local MAX_ENTRIES = 2^28

--- Streams of the generator that a seed is split into; fh.problem has its own, counted from 16.
local STREAM = { picks = 0, holes = 1, invalid = 2, lengths = 3, invalid_rows = 4, invalid_row_values = 5, blocks = 6 }

-- ---- Options ----------------------------------------------------------------------------------------------------------------

-- One number, or a list of one for each request.
local PER_REQUEST = { axis = "number" }
option.kinds.PER_REQUEST = PER_REQUEST
function PER_REQUEST.check(value, row)
  if type(value) == "table" then return value end -- its length follows from the other options
  local good, wanted = option.kinds.INTEGER.check(value, row)
  return good, wanted and (type(value) == "number" and wanted or wanted .. ", or a list of one a request")
end

-- What a pattern that is a function is: { row = f } or { fill = f }, name = text or nil; nil where v is no such thing.
local function rule_of(v)
  if type(v) == "function" then return { row = v } end
  if type(v) ~= "table" or getmetatable(v) ~= nil then return nil end
  for key in pairs(v) do
    if key ~= "row" and key ~= "fill" and key ~= "name" then return nil end
  end
  local f = v.row or v.fill
  local good = type(f) == "function" and not (v.row and v.fill) and (v.name == nil or type(v.name) == "string")
  return good and { row = v.row, fill = v.fill, name = v.name } or nil
end

-- A pattern: a name, or a function that makes lists. is_value: what one value of an axis may be besides text.
local PATTERN = { axis = "name", is_value = function(v) return rule_of(v) ~= nil end }
option.kinds.PATTERN, PATTERN.parse = PATTERN, option.kinds.TEXT.parse
function PATTERN.check(value, row)
  if rule_of(value) then return value end
  local good, wanted = option.kinds.TEXT.check(value, row)
  if good or type(value) == "string" then return good, wanted end
  return nil, wanted .. ", a function(row), { row = function } or { fill = function }"
end

-- What topk_length says: a name, or a number for every row.
local LENGTHS = { axis = "mixed" }
option.kinds.LENGTHS = LENGTHS
function LENGTHS.check(value, row)
  for _, name in ipairs(row.choices) do
    if value == name then return value end
  end
  local good = option.kinds.INTEGER.check(value, { lo = 0 })
  return good, not good and table.concat(row.choices, ", ") .. " or a whole number >= 0" or nil
end

--- The options of index lists (fewhead.base.option). Those of COMMON are every pattern's; what a pattern takes beside them stands
-- in its entry.
M.rows = option.rows("pattern", {
  { "--s-q", "INTEGER", "rows of a chunk", axis = true, lo = 0, hi = INT32_MAX },
  { "--s-kv", "INTEGER", "KV rows", axis = true, lo = 0, hi = INT32_MAX },
  { "--topk", "INTEGER", "width of the index lists", axis = true, lo = 0, hi = INT32_MAX },
  { "--window", "INTEGER", "rows of the sliding window", axis = true, lo = 0, hi = INT32_MAX },
  { "--index-topk", "INTEGER", "picks of the indexer", axis = true, lo = 0, hi = INT32_MAX },
  { "--ratio", "INTEGER", "tokens to a compressed KV row", axis = true, lo = 1, hi = INT32_MAX },
  { "--block", "COUNT", "neighbouring KV rows that are picked from or picked together", kind = "INTEGER", axis = true, lo = 1,
    hi = 65536 },
  { "--prior", "ROWS", "tokens before the chunk", kind = "PER_REQUEST", axis = true, lo = 0, hi = INT32_MAX },
  { "--requests", "COUNT", "requests in the chunk", kind = "PER_REQUEST", axis = true, lo = 1, hi = INT32_MAX },
  { "--keep", "NUMBER", "share of picks kept from row to row", axis = true, lo = 0, hi = 1 },
  { "--holes", "NUMBER", "share of invalid entries in the lists", axis = true, lo = 0, hi = 1 },
  { "--repeats", "BOOLEAN", "lists with repeated indices", axis = true },
  { "--lengths", "LENGTHS", "topk_length: natural, uniform, none or a number", axis = true,
    choices = { "natural", "none", "uniform" } },
  { "--invalid-rows", "NUMBER", "share of rows without a valid key", axis = true, lo = 0, hi = 1 },
  { "--indices", "FILE", "captured index lists in place of a pattern: int32 .npy [rows, topk]", axis = true },
  { "--seed", "INTEGER", "seed of numbers and indices", axis = true, lo = 0 },
})

-- The options of every pattern.
local COMMON = { "s_q", "s_kv", "topk", "seed", "lengths", "invalid_rows" }

-- The patterns by name. Each is one entry at the end of this file: { name =, options = those it takes beside the common ones,
-- needs = the option without which it is nothing, preset = options whose default in a case is the preset's, resolve = function(g,
-- o, what, level), which checks the options and fills in g, fill = function(g, indices, lengths) }.
local PATTERNS = {}

--- The names, in order.
M.names = {}

--- The names of the patterns whose lists are drawn, rather than read from a file.
M.drawn = {}

--- The option names that make() and resolve() know.
M.options = option.keys(M.rows)

local is_common = {}
for _, key in ipairs(COMMON) do is_common[key] = true end

local function add(pattern)
  PATTERNS[pattern.name], M.names[#M.names + 1] = pattern, pattern.name
  if not pattern.needs then M.drawn[#M.drawn + 1] = pattern.name end
  pattern.takes = {}
  for _, key in ipairs(pattern.options) do
    if not M.rows.by_key[key] then error(("pattern %s: no row of an option %s"):format(pattern.name, key), 2) end
    pattern.takes[key] = true
  end
end

--- What a pattern is called: its name, or "function".
function M.name_of(pattern) return type(pattern) == "string" and pattern or "function" end

--- The same with the name that its giver gave it: "function(mine)".
function M.label(pattern)
  local rule = type(pattern) ~= "string" and rule_of(pattern)
  return rule and rule.name and ("function(%s)"):format(rule.name) or M.name_of(pattern)
end

--- The name that the giver of a function gave it; nil for others.
function M.given_name(pattern)
  local rule = rule_of(pattern)
  return rule and rule.name
end

--- The function among the values of an axis that a described case names: its pattern_name, nil for one without. nil for none.
function M.among(values, name)
  if rule_of(values) then values = { values } end
  for _, one in ipairs(type(values) == "table" and values or {}) do
    local rule = rule_of(one)
    if rule and rule.name == name then return one end
  end
end

local function entry_of(pattern) return PATTERNS[M.name_of(pattern)] end

--- The options that a pattern takes beyond those that all of them do, in order. Here and below a pattern is a name or a function.
function M.reads(pattern) return entry_of(pattern).options end

--- Whether a pattern takes the option `key` of M.options.
function M.takes(pattern, key) return is_common[key] or entry_of(pattern).takes[key] or false end

--- The option without which a pattern is nothing; nil for those that are drawn.
function M.needs(pattern) return entry_of(pattern).needs end

--- The names of the patterns that take the option `key`, in order.
function M.taking(key)
  local list = {}
  for _, name in ipairs(M.names) do
    if M.takes(name, key) then list[#list + 1] = name end
  end
  return list
end

--- A copy of a table of options without those that a pattern does not take: for scripts that go through several patterns.
function M.fitting(name, options)
  local copy = {}
  for key, value in pairs(options) do
    if not M.rows.by_key[key] or M.takes(name, key) then copy[key] = value end
  end
  return copy
end

--- The options of a pattern whose default in a case is the preset's figure of that name.
function M.of_preset(name) return entry_of(name).preset end

-- ---- Sizes ------------------------------------------------------------------------------------------------------------------

-- A number or list option of each request, as a list of `count` whole numbers.
local function per_request(what, v, count, lo, hi, level)
  local list = {}
  if type(v) ~= "table" then
    args.integer(what, v, lo, hi, level + 1)
    for r = 1, count do list[r] = v end
    return list
  end
  if #v ~= count then
    error(("%s: got %s, wanted one number or a list of %d, one a request"):format(what, args.show(v), count), level + 1)
  end
  for r = 1, count do list[r] = args.integer(("%s[%d]"):format(what, r), v[r], lo, hi, level + 1) end
  return list
end

--- s_q rows dealt evenly to `count` requests, the first ones getting one more where it does not come out even.
function M.deal(s_q, count)
  local rows = {}
  for r = 1, count do rows[r] = floor(s_q / count) + (r <= s_q % count and 1 or 0) end
  return rows
end

-- Row counts of the requests that share s_q rows.
local function request_rows(what, v, s_q, level)
  if type(v) == "table" then
    local rows, sum = {}, 0
    for r, n in ipairs(v) do
      rows[r] = args.integer(("%s[%d]"):format(what, r), n, 0, s_q, level + 1)
      sum = sum + n
    end
    if sum ~= s_q or #rows == 0 then
      error(("%s: got %s, wanted row counts that add up to s_q = %d"):format(what, args.show(v), s_q), level + 1)
    end
    return rows
  end
  args.integer(what, v, 1, max(1, s_q), level + 1)
  return M.deal(s_q, v)
end

-- Where the KV rows of a request lie: its compressed rows (none where ratio is nil), then the tokens that a window can reach.
local function place_requests(g, o, ratio, what, level)
  g.requests = request_rows(what .. ": requests", given(o.requests, 1), g.s_q, level + 1)
  g.prior = per_request(what .. ": prior", given(o.prior, 0), #g.requests, 0, INT32_MAX, level + 1)
  g.compressed, g.tokens = 0, 0
  for r, rows in ipairs(g.requests) do
    if ratio then g.compressed = max(g.compressed, floor((g.prior[r] + rows) / ratio)) end
    if (g.window or 0) > 0 then g.tokens = max(g.tokens, rows + min(g.prior[r], g.window - 1)) end
  end
  local count, wanted = #g.requests, g.compressed + g.tokens
  if o.s_kv == nil then
    g.s_kv = args.integer(what .. ": s_kv", count * wanted, 0, INT32_MAX, level + 1)
  elseif o.s_kv % count ~= 0 or o.s_kv / count < wanted then
    error(("%s: s_kv: got %s, wanted %d * M with M >= %d: requests * (%d compressed + %d token rows)"):format(
      what, args.show(o.s_kv), count, wanted, g.compressed, g.tokens), level + 1)
  end
  g.kv_rows = g.s_kv / count
end

local function resolve_uniform(g, o, what, level)
  g.topk = g.topk or INDEX_TOPK + WINDOW
  g.s_kv = g.s_kv or BATCHED_TOKENS
  g.repeats = given(o.repeats, false)
  if not g.repeats then args.integer(what .. ": s_kv", g.s_kv, 0, MAX_ENTRIES, level + 1) end
  g.holes = given(o.holes, 0)
end

local function resolve_window(g, o, what, level)
  local most = g.topk or INT32_MAX
  g.window = args.integer(what .. ": window", given(o.window, min(WINDOW, most)), 0, most, level + 1)
  g.topk = g.topk or g.window
  g.index_topk, g.holes = 0, 0
  place_requests(g, o, nil, what, level + 1)
end

local function resolve_csa(g, o, what, level)
  g.window = args.integer(what .. ": window", given(o.window, WINDOW), 0, INT32_MAX, level + 1)
  if g.topk and g.topk < g.window then
    error(("%s: topk: got %d, wanted at least the window, %d"):format(what, g.topk, g.window), level + 1)
  end
  g.index_topk = args.integer(what .. ": index_topk", given(o.index_topk, g.topk and g.topk - g.window or INDEX_TOPK), 0,
    (g.topk or INT32_MAX) - g.window, level + 1)
  g.topk = g.topk or g.index_topk + g.window
  g.ratio = given(o.ratio, 1)
  g.holes = given(o.holes, HOLES)
  place_requests(g, o, g.ratio, what, level + 1)
  if g.compressed > MAX_ENTRIES then
    error(("%s: prior: got %s, %d compressed rows at ratio %d, wanted at most %d"):format(what, args.show(o.prior), g.compressed,
      g.ratio, MAX_ENTRIES), level + 1)
  end
end

local function resolve_local(g, o, what, level)
  g.keep = given(o.keep, KEEP)
  resolve_csa(g, o, what, level + 1)
end

local function resolve_blocks(g, o, what, level)
  g.keep, g.block = given(o.keep, KEEP), given(o.block, BLOCK)
  resolve_csa(g, o, what, level + 1)
  g.holes = given(o.holes, 0)
end

local function resolve_pools(g, o, what, level)
  g.keep, g.block = given(o.keep, KEEP), given(o.block, POOL)
  local tail = g.block - 1
  if g.topk and g.topk < tail then
    error(("%s: topk: got %d, wanted at least block - 1 = %d"):format(what, g.topk, tail), level + 1)
  end
  local most = g.topk and g.topk - tail or INT32_MAX - tail
  local usual = g.topk and most - most % g.block or POOLED - POOLED % g.block
  g.index_topk = args.integer(what .. ": index_topk", given(o.index_topk, usual), 0, most, level + 1)
  if g.index_topk % g.block ~= 0 then
    error(("%s: index_topk: got %d, wanted a multiple of block = %d"):format(what, g.index_topk, g.block), level + 1)
  end
  g.topk = g.topk or g.index_topk + tail
  place_requests(g, o, 1, what, level + 1)
  args.integer(what .. ": s_kv", g.compressed, 0, MAX_ENTRIES, level + 1)
end

local function resolve_all(g, o, what, level)
  g.window, g.ratio, g.holes = given(o.window, WINDOW), given(o.ratio, ALL_RATIO), 0
  place_requests(g, o, g.ratio, what, level + 1)
  local wanted = g.compressed + g.window
  if g.topk and g.topk < wanted then
    error(("%s: topk: got %d, wanted at least %d: %d compressed rows and a window of %d"):format(what, g.topk, wanted,
      g.compressed, g.window), level + 1)
  end
  g.index_topk, g.topk = g.compressed, g.topk or wanted
end

local function resolve_dense_prefix(g, o, what, level)
  g.topk = g.topk or INDEX_TOPK + WINDOW
  place_requests(g, o, 1, what, level + 1)
end

-- Offsets of requests for the first s_q rows; nil where there are none.
local function first_offsets(offsets, s_q)
  local list = offsets and {}
  for i, offset in ipairs(offsets or {}) do
    list[i] = min(offset, s_q)
    if offset >= s_q then break end
  end
  return list
end

local function resolve_file(g, o, what, level)
  g.indices = args.string(what .. ": indices", o.indices, level + 1)
  local lists, err = npy.load(g.indices)
  if not lists then return nil, err end
  local shape = lists.shape
  local rows, width, lengths = shape[1], shape[#shape], lists.topk_length
  if not (#shape == 2 or #shape == 3 and shape[2] == 1) then
    return nil, ("%s: got shape {%s}, wanted {s_q, topk} or {s_q, 1, topk}"):format(g.indices, table.concat(shape, ", "))
  end
  g.s_q = args.integer(what .. ": s_q", given(o.s_q, rows), 0, rows, level + 1)
  g.topk = args.integer(what .. ": topk", given(o.topk, width), width, width, level + 1)
  g.lists = lists.data
  if lengths then
    if #lengths.shape ~= 1 or lengths.shape[1] ~= rows then
      return nil, ("%s: topk_length: got shape {%s}, wanted {%d}"):format(g.indices, table.concat(lengths.shape, ", "), rows)
    end
    g.list_lengths = lengths.data
  end
  g.offsets = first_offsets(lists.cu_seqlens_q, g.s_q)
  g.s_kv = g.s_kv or lists.s_kv
  if not g.s_kv then
    local largest = -1
    for i = 0, g.s_q * g.topk - 1 do largest = max(largest, g.lists[i]) end
    g.s_kv = min(largest + 1, INT32_MAX)
  end
end

-- ---- Lists of a function ----------------------------------------------------------------------------------------------------

-- What a function of the user's returns; raises with where it was and with the user's own line where it raises.
local function ask(f, what, where, level, ...)
  local ok, found = pcall(f, ...)
  if not ok then error(("%s: pattern: %s: %s"):format(what, where, tostring(found)), level + 1) end
  return found
end

-- Refuse an entry that is no KV row and no hole. highest: the last KV row.
local function check_entry(what, where, entry, highest, level)
  if type(entry) ~= "number" or entry ~= floor(entry) or entry < -1 or entry > highest then
    error(("%s: pattern: %s: got %s, wanted a KV row in 0 .. %d, or -1"):format(what, where, args.show(entry), highest),
      level + 1)
  end
end

-- The lists that rule.row returns, row by row: sets topk, s_kv, lists and list_lengths of g.
local function ask_rows(g, rule, sizes, what, level)
  local rows, longest, largest, highest = {}, 0, -1, g.s_kv and g.s_kv - 1 or INT32_MAX - 1
  for row = 0, g.s_q - 1 do
    local where = "row " .. row
    local list = ask(rule.row, what, where, level + 1, row, sizes)
    if type(list) ~= "table" or getmetatable(list) ~= nil then
      error(("%s: pattern: %s: got %s, wanted a list of KV rows"):format(what, where, args.show(list)), level + 1)
    end
    if g.topk and #list > g.topk then
      error(("%s: pattern: %s: got %d entries, wanted at most topk = %d"):format(what, where, #list, g.topk), level + 1)
    end
    for k, entry in ipairs(list) do
      check_entry(what, ("%s, entry %d"):format(where, k), entry, highest, level + 1)
      largest = max(largest, entry)
    end
    rows[row], longest = list, max(longest, #list)
  end
  g.topk, g.s_kv = g.topk or longest, g.s_kv or largest + 1
  if g.s_q * g.topk > MAX_ENTRIES then return end -- resolve refuses it
  g.lists, g.list_lengths = ffi.new("int32_t[?]", max(g.s_q * g.topk, 1)), ffi.new("int32_t[?]", max(g.s_q, 1))
  for row = 0, g.s_q - 1 do
    local list = rows[row]
    for k = 1, g.topk do g.lists[row * g.topk + k - 1] = list[k] or -1 end
    g.list_lengths[row] = #list
  end
end

-- The lists that rule.fill writes: sets s_kv and lists of g. Returns nil, err without memory.
local function ask_fill(g, rule, sizes, what, level)
  if not g.topk then
    error(("%s: topk: got nil, wanted the width of the lists that the function fills"):format(what), level + 1)
  end
  local count = g.s_q * g.topk
  if count > MAX_ENTRIES then return end -- resolve refuses it
  g.lists = ffi.new("int32_t[?]", max(count, 1))
  if count > 0 then
    local tensor = require "fewhead.device.tensor"
    local dev = assert(require("fewhead.device.device").open("cpu", { threads = 1 }))
    local indices, err = tensor.new(dev, "i32", { g.s_q, g.topk })
    if not indices then return nil, err end
    indices:fill(-1)
    ask(rule.fill, what, "the function", level + 1, indices, sizes)
    ffi.copy(g.lists, indices:read(), count * ffi.sizeof("int32_t"))
    indices:free()
    dev:close()
  end
  local largest, highest = -1, g.s_kv and g.s_kv - 1 or INT32_MAX - 1
  for at = 0, count - 1 do
    local where = ("row %d, entry %d"):format(floor(at / g.topk), at % g.topk + 1)
    if g.lists[at] < -1 or g.lists[at] > highest then check_entry(what, where, g.lists[at], highest, level + 1) end
    largest = max(largest, g.lists[at])
  end
  g.s_kv = g.s_kv or largest + 1
end

local function resolve_function(g, _, what, level)
  local sizes = { s_q = g.s_q, s_kv = g.s_kv, topk = g.topk, seed = g.seed }
  local _, err
  if g.rule.row then ask_rows(g, g.rule, sizes, what, level + 1)
  else _, err = ask_fill(g, g.rule, sizes, what, level + 1) end
  return nil, err
end

-- Refuse an option that the pattern does not take.
local function check_taken(name, o, what, level)
  for _, key in ipairs(M.options) do
    if o[key] ~= nil and not M.takes(name, key) then
      error(('%s: %s: has no effect with pattern "%s"; patterns that take it: %s'):format(what, key, name,
        table.concat(M.taking(key), ", ")), level + 1)
    end
  end
end

--- Check the options and fill in defaults and sizes, without drawing anything: a table with s_q, s_kv, topk, seed, lengths,
-- invalid_rows and what the pattern reads (requests and prior as lists, one number a request). Wrong options raise, blaming the
-- `level`-th caller from the function that calls resolve (1 = that function); a bad file is nil, err. name: also a pattern
-- that is a function; the table then has rule, the function, and name = "function".
function M.resolve(name, o, level, what)
  level = level or 2
  local rule = rule_of(name)
  if rule then name = "function" else args.enum(what and what .. ": pattern" or "pattern", name, M.names, level + 1) end
  what = what or "pattern " .. name
  o = option.table(what, o, M.rows, level + 1)
  check_taken(name, o, what, level + 1)
  local g = { name = name, rule = rule, s_kv = o.s_kv, topk = o.topk }
  g.seed, g.invalid_rows = given(o.seed, 0), given(o.invalid_rows, 0)
  if not entry_of(name).needs then g.s_q = args.integer(what .. ": s_q", o.s_q, 0, INT32_MAX, level + 1) end
  local _, err = entry_of(name).resolve(g, o, what, level + 1)
  if err then return nil, err end
  g.lengths = given(o.lengths, "natural")
  if type(g.lengths) == "number" then args.integer(what .. ": lengths", g.lengths, 0, g.topk, level + 1) end
  if g.s_q * g.topk > MAX_ENTRIES then
    error(("%s: s_q * topk: got %d * %d, wanted at most %d entries"):format(what, g.s_q, g.topk, MAX_ENTRIES), level + 1)
  end
  return g
end

-- ---- Drawing ----------------------------------------------------------------------------------------------------------------

local BATCH = 4096
local WORDS = 2^32

-- Evenly drawn whole numbers 0 .. n - 1 (n <= 2^32), always the same for a seed and stream.
local function dice(seed, stream)
  local words, at, first = ffi.new("uint32_t[?]", BATCH), BATCH, 0
  return function(n)
    if at == BATCH then
      F.C.fh_random_u32(seed, stream, first, BATCH, words)
      first, at = first + BATCH, 0
    end
    local word = words[at]
    at = at + 1
    return floor(word * n / WORDS)
  end
end

-- 0, 1, .. n - 1
local function identity(n)
  local list = ffi.new("int32_t[?]", max(n, 1))
  for i = 0, n - 1 do list[i] = i end
  return list
end

-- Bring `count` evenly drawn members of perm[0 .. n - 1], whatever their order, to its front (Fisher and Yates).
local function shuffle_front(perm, n, count, roll)
  for k = 0, count - 1 do
    local j = k + roll(n - k)
    perm[k], perm[j] = perm[j], perm[k]
  end
end

-- Exchange `fresh` drawn members of perm[0 .. count - 1] for drawn ones of perm[count .. n - 1].
local function renew_front(perm, n, count, fresh, roll)
  for k = 0, fresh - 1 do
    local old, new = k + roll(count - k), count + k + roll(n - count - k)
    local leaving, coming = perm[old], perm[new]
    perm[old] = perm[k] -- one at a time: old may be k, new may be count + k
    perm[k] = coming
    perm[new] = perm[count + k]
    perm[count + k] = leaving
  end
end

local function invalid_values(s_kv)
  local values, n = ffi.new("int32_t[?]", #INVALID + 1), 0
  for _, v in ipairs(INVALID) do
    if v < 0 or v >= s_kv then values[n], n = v, n + 1 end
  end
  values[n] = s_kv
  return values, n + 1
end

-- Another pick of `picks` out of n: those of the row before, but for a share of 1 - keep, where there is such a row; else afresh.
local function draw_picks(perm, n, picks, keep, roll)
  if keep then renew_front(perm, n, picks, min(floor(picks * (1 - keep) + 0.5), n - picks), roll)
  else shuffle_front(perm, n, picks, roll) end
end

-- The window rows of a row at `pos` behind `picks` entries, and -1 to the list's end; returns the list's length.
local function fill_window(g, indices, at, picks, first_token, pos)
  local reach = min(pos + 1, g.window)
  for k = 0, reach - 1 do indices[at + picks + k] = first_token + pos - reach + 1 + k end
  for k = picks + reach, g.topk - 1 do indices[at + k] = -1 end
  return picks + reach
end

-- Requests, compressed picks and windows: csa, local, all and window differ only in how the picks change from row to row, g.keep.
local function fill_rows(g, indices, lengths)
  local roll, hole = dice(g.seed, STREAM.picks), dice(g.seed, STREAM.holes)
  local topk, window, index_topk, ratio, holes = g.topk, g.window, g.index_topk, g.ratio or 1, g.holes * WORDS
  local keep = g.keep
  local row = 0
  for r = 1, #g.requests do
    local prior, base = g.prior[r], (r - 1) * g.kv_rows
    local first_token = base + g.compressed - max(0, prior - (window - 1)) -- KV row of token 0, were it kept
    local perm = identity(index_topk > 0 and g.compressed or 0)
    for i = 0, g.requests[r] - 1 do
      local pos, at = prior + i, row * topk
      local pool = index_topk > 0 and floor((pos + 1) / ratio) or 0
      local picks = min(pool, index_topk)
      if pool > picks then
        draw_picks(perm, pool, picks, i > 0 and keep, roll)
      end
      for k = 0, picks - 1 do indices[at + k] = base + perm[k] end
      if holes > 0 then
        for k = 0, picks - 1 do
          if hole(WORDS) < holes then indices[at + k] = -1 end
        end
      end
      lengths[row] = fill_window(g, indices, at, picks, first_token, pos)
      row = row + 1
    end
  end
end

-- Writes the numbers whose bits are set in `words`, rising, plus base, and clears the bits; returns how many.
local function take_sorted(words, count, indices, at, base)
  local n = 0
  for w = 0, count - 1 do
    local word = words[w]
    if word ~= 0 then
      words[w] = 0
      for b = 0, 31 do
        if bit.band(word, bit.lshift(1, b)) ~= 0 then indices[at + n], n = base + w * 32 + b, n + 1 end
      end
    end
  end
  return n
end

-- A pick is a place in the candidate blocks: it stays while neither it nor the block at its place changes. A pick in the part of
-- the last block that the row does not see yet is left out.
local function fill_blocks(g, indices, lengths)
  local roll, hole, turn = dice(g.seed, STREAM.picks), dice(g.seed, STREAM.holes), dice(g.seed, STREAM.blocks)
  local block, keep, holes, row = g.block, g.keep, g.holes * WORDS, 0
  for r = 1, #g.requests do
    local prior, base = g.prior[r], (r - 1) * g.kv_rows
    local first_token = base + g.compressed - max(0, prior - (g.window - 1))
    local words = ffi.new("int32_t[?]", floor(g.compressed / 32) + 1)
    local places = identity(min(g.compressed, BLOCKS * block))
    local candidates = identity(floor((g.compressed + block - 1) / block))
    local drawn = false -- whether the row before has candidates among more blocks
    for i = 0, g.requests[r] - 1 do
      local pos, at = prior + i, row * g.topk
      local pool = floor((pos + 1) / g.ratio)
      local blocks = floor((pool + block - 1) / block)
      if blocks > BLOCKS then
        draw_picks(candidates, blocks, BLOCKS, drawn and keep, turn)
        drawn = true
      end
      local among = min(pool, BLOCKS * block)
      local picks = min(among, g.index_topk)
      if among > picks then draw_picks(places, among, picks, i > 0 and keep, roll) end
      for k = 0, picks - 1 do
        local place = places[k]
        local pick = candidates[floor(place / block)] * block + place % block
        if pick < pool then
          local w = floor(pick / 32)
          words[w] = bit.bor(words[w], bit.lshift(1, pick % 32))
        end
      end
      picks = take_sorted(words, floor(pool / 32) + 1, indices, at, base)
      if holes > 0 then
        for k = 0, picks - 1 do
          if hole(WORDS) < holes then indices[at + k] = -1 end
        end
      end
      lengths[row] = fill_window(g, indices, at, picks, first_token, pos)
      row = row + 1
    end
  end
end

local function fill_pools(g, indices, lengths)
  local roll, block, row = dice(g.seed, STREAM.picks), g.block, 0
  for r = 1, #g.requests do
    local base = (r - 1) * g.kv_rows
    local perm = identity(floor((g.prior[r] + g.requests[r]) / block))
    for i = 0, g.requests[r] - 1 do
      local tokens, at = g.prior[r] + i + 1, row * g.topk
      local pools = floor(tokens / block)
      local picks = min(pools, g.index_topk / block)
      if pools > picks then draw_picks(perm, pools, picks, i > 0 and g.keep, roll) end
      for k = 0, picks * block - 1 do indices[at + k] = base + perm[floor(k / block)] * block + k % block end
      local length = picks * block
      for token = pools * block, tokens - 1 do indices[at + length], length = base + token, length + 1 end
      for k = length, g.topk - 1 do indices[at + k] = -1 end
      lengths[row] = length
      row = row + 1
    end
  end
end

local function fill_uniform(g, indices)
  local s_kv, topk, roll = g.s_kv, g.topk, dice(g.seed, STREAM.picks)
  local bad, hole = dice(g.seed, STREAM.invalid), dice(g.seed, STREAM.holes)
  local invalid, kinds = invalid_values(s_kv)
  local perm = identity(g.repeats and 0 or s_kv)
  local drawn = g.repeats and s_kv > 0 and topk or min(topk, s_kv)
  for row = 0, g.s_q - 1 do
    local at = row * topk
    if g.repeats then
      for k = 0, drawn - 1 do indices[at + k] = roll(s_kv) end
    else
      shuffle_front(perm, s_kv, drawn, roll)
      for k = 0, drawn - 1 do indices[at + k] = perm[k] end
    end
    for k = drawn, topk - 1 do indices[at + k] = invalid[bad(kinds)] end
    if g.holes > 0 then
      for k = 0, drawn - 1 do
        if hole(WORDS) < g.holes * WORDS then indices[at + k] = invalid[bad(kinds)] end
      end
    end
  end
end

local function fill_dense_prefix(g, indices, lengths)
  local topk, row = g.topk, 0
  for r = 1, #g.requests do
    local base = (r - 1) * g.kv_rows
    for i = 0, g.requests[r] - 1 do
      local keys, at = min(g.prior[r] + i + 1, topk), row * topk
      for k = 0, keys - 1 do indices[at + k] = base + k end
      for k = keys, topk - 1 do indices[at + k] = -1 end
      lengths[row] = keys
      row = row + 1
    end
  end
end

local function fill_file(g, indices, lengths)
  ffi.copy(indices, g.lists, g.s_q * g.topk * ffi.sizeof("int32_t"))
  if g.list_lengths then ffi.copy(lengths, g.list_lengths, g.s_q * ffi.sizeof("int32_t")) end
end

-- Whether the pattern itself says how long its lists are.
local function has_lengths(g) return g.list_lengths ~= nil or g.requests ~= nil end

--- The lists: { indices = int32_t[s_q * topk], topk_length = int32_t[s_q] or nil, keys = int32_t[s_q] valid keys of each row,
-- valid = their sum, s_q, s_kv, topk, cu_seqlens_q = a list, first row of each request and s_q, where captured lists say so }.
-- Depends on the options alone. Wrong options raise; a bad file is nil, err.
function M.make(name, o)
  local g, err = M.resolve(name, o, 2)
  if not g then return nil, err end
  return (M.draw(g))
end

--- make() for options that resolve() has returned.
function M.draw(g)
  local s_q, s_kv, topk = g.s_q, g.s_kv, g.topk
  local indices, lengths = ffi.new("int32_t[?]", max(s_q * topk, 1)), ffi.new("int32_t[?]", max(s_q, 1))
  PATTERNS[g.name].fill(g, indices, lengths)

  if g.invalid_rows > 0 then
    local roll, bad = dice(g.seed, STREAM.invalid_rows), dice(g.seed, STREAM.invalid_row_values)
    local invalid, kinds = invalid_values(s_kv)
    for row = 0, s_q - 1 do
      if roll(WORDS) < g.invalid_rows * WORDS then
        for at = row * topk, row * topk + topk - 1 do indices[at] = invalid[bad(kinds)] end
      end
    end
  end

  local has = has_lengths(g) and g.lengths ~= "none"
  if g.lengths == "uniform" then
    local roll = dice(g.seed, STREAM.lengths)
    for row = 0, s_q - 1 do lengths[row] = roll(topk + 1) end
    has = true
  elseif type(g.lengths) == "number" then
    for row = 0, s_q - 1 do lengths[row] = g.lengths end
    has = true
  end

  local keys, valid = ffi.new("int32_t[?]", max(s_q, 1)), 0
  for row = 0, s_q - 1 do
    local count, at = 0, row * topk
    for k = 0, (has and max(0, min(lengths[row], topk)) or topk) - 1 do
      local index = indices[at + k]
      if index >= 0 and index < s_kv then count = count + 1 end
    end
    keys[row], valid = count, valid + count
  end
  return {
    indices = indices, topk_length = has and lengths or nil, keys = keys, valid = valid, s_q = s_q, s_kv = s_kv, topk = topk,
    cu_seqlens_q = g.offsets,
  }
end

-- ---- The table ----------------------------------------------------------------------------------------------------------------

add { name = "uniform", options = { "repeats", "holes" }, preset = { "topk" }, resolve = resolve_uniform, fill = fill_uniform }
add {
  name = "window", options = { "window", "requests", "prior" }, preset = {}, resolve = resolve_window, fill = fill_rows,
}
add {
  name = "csa", options = { "window", "index_topk", "ratio", "holes", "requests", "prior" },
  preset = { "window", "index_topk", "ratio" }, resolve = resolve_csa, fill = fill_rows,
}
add {
  name = "local", options = { "window", "index_topk", "ratio", "keep", "holes", "requests", "prior" },
  preset = { "window", "index_topk", "ratio" }, resolve = resolve_local, fill = fill_rows,
}
add {
  name = "blocks", options = { "window", "index_topk", "ratio", "block", "keep", "holes", "requests", "prior" },
  preset = { "window", "index_topk", "ratio" }, resolve = resolve_blocks, fill = fill_blocks,
}
add {
  name = "pools", options = { "index_topk", "block", "keep", "requests", "prior" }, preset = { "index_topk", "block" },
  resolve = resolve_pools, fill = fill_pools,
}
add {
  name = "all", options = { "window", "ratio", "requests", "prior" }, preset = { "window" }, resolve = resolve_all,
  fill = fill_rows,
}
add {
  name = "dense_prefix", options = { "requests", "prior" }, preset = { "topk" }, resolve = resolve_dense_prefix,
  fill = fill_dense_prefix,
}
add { name = "file", options = { "indices" }, needs = "indices", preset = {}, resolve = resolve_file, fill = fill_file }

-- What stands for a function; no name that one could give.
PATTERNS["function"] = { options = {}, takes = {}, preset = {}, resolve = resolve_function, fill = fill_file }

return M
