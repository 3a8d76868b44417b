--- Flips: does one arm answer worse than the other? Two arms' results on the same items, item by item.
--
--     local found = assert(fh.flips.compare("padded.jsonl", "native.jsonl"))
--     print(found)                       -- 7 items turned right, 5 turned wrong: p = 0.774, no difference seen ..
--
-- Items are right or wrong. Only those on which the arms differ say anything about a difference: by chance each of them
-- goes either way with probability one half (McNemar). The exact two-sided test is used; it is conservative, so a true
-- difference is missed a little more often than 5 % would say (the mid-p version is not, and is not what is printed).
local args = require "fewhead.base.arguments"
local option = require "fewhead.base.option"
local json = require "fewhead.base.json"

local M = {}

-- ---- Counts ---------------------------------------------------------------------------------------------------------

-- ln of n over k.
local function log_choose(n, k)
  local sum = 0
  for i = 1, k do sum = sum + math.log(n - k + i) - math.log(i) end
  return sum
end

--- The exact two-sided p value of McNemar's test for b items that flipped one way and c the other: twice the
-- probability of at most min(b, c) heads in b + c throws of a fair coin, at most 1. 1 where nothing flipped.
function M.mcnemar(b, c)
  args.integer("flips.mcnemar: b", b, 0, nil, 2)
  args.integer("flips.mcnemar: c", c, 0, nil, 2)
  local n, sum = b + c, 0
  for k = 0, math.min(b, c) do sum = sum + math.exp(log_choose(n, k) - n * math.log(2)) end
  return math.min(1, 2 * sum)
end

local Z95 = 1.959963984540054

--- Wilson's 95 % interval of a share of k in n (E. B. Wilson, 1927): lo, hi; nil for n = 0.
function M.wilson(k, n)
  args.integer("flips.wilson: n", n, 0, nil, 2)
  args.integer("flips.wilson: k", k, 0, n, 2)
  if n == 0 then return nil end
  local share, z2 = k / n, Z95 ^ 2
  local middle = (share + z2 / (2 * n)) / (1 + z2 / n)
  local half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
  return math.max(0, middle - half), math.min(1, middle + half)
end

--- The smallest difference between right answers of the arms that the test calls significant (p < 0.05) when `flips`
-- items differ: as a number of items; nil where no split of so few items is significant (fewer than 6).
function M.smallest_seen(flips)
  args.integer("flips.smallest_seen: flips", flips, 0, nil, 2)
  for less = math.floor(flips / 2), 0, -1 do
    if M.mcnemar(less, flips - less) < 0.05 then return flips - 2 * less end
  end
end

-- ---- Files ----------------------------------------------------------------------------------------------------------

local RIGHT = { [true] = true, [1] = true }
local WRONG = { [false] = true, [0] = true }

-- The items of a file as { [id as text] = right }, and their number; nil, "file:line: reason".
local function read(file, id_field, value_field)
  local handle, err = io.open(file, "rb")
  if not handle then return nil, err end
  local items, count, number = {}, 0, 0
  local reason
  for line in handle:lines() do
    number = number + 1
    if line:find("%S") then
      local item
      item, reason = json.decode(line)
      if item ~= nil then
        reason = nil
        local id, value = type(item) == "table" and item[id_field], type(item) == "table" and item[value_field]
        if type(item) ~= "table" then reason = "got " .. args.show(item) .. ", wanted an object"
        elseif type(id) ~= "string" and type(id) ~= "number" then
          reason = ("%s: got %s, wanted a string or a number"):format(id_field, args.show(id))
        elseif not RIGHT[value] and not WRONG[value] then
          reason = ("%s: got %s, wanted true, false, 1 or 0"):format(value_field, args.show(value))
        else
          id = type(id) == "number" and args.show(id) or id
          if items[id] ~= nil then reason = ("%s: %s stands twice"):format(id_field, args.show(id)) end
          items[id], count = RIGHT[value] or false, count + 1
        end
      end
      if reason then
        handle:close()
        return nil, ("%s:%d: %s"):format(file, number, reason)
      end
    end
  end
  handle:close()
  return items, count
end

local Flips = { __name = "flips" }
Flips.__index = Flips
M.class = Flips -- a later room gives it print

--- The options of compare (fewhead.base.option).
M.rows = option.rows("flips.compare", {
  { "--id", "NAME", "field that names an item", default = "id" },
  { "--right", "NAME", "field that says whether the answer is right: true, false, 1 or 0", default = "right" },
})

--- Compare two JSONL files of item results, one object a line: { id = text or number, right = true, false, 1 or 0 }; 1
-- and "1" are the same id, the order does not matter. options: id, right: names of these fields ("id", "right").
-- Returns { n = items in both, right_a, right_b, better = wrong in a and right in b, worse = the other way, p = of the
-- exact McNemar test (nil without items), interval_a, interval_b = { lo, hi } Wilson, smallest = what M.smallest_seen
-- says, only_a, only_b = ids that stand in one file only }; prints as lines. nil, "file:line: reason" for a line that
-- is no item, or an id that is there twice.
function M.compare(a, b, options)
  args.string("flips.compare: a", a, 2)
  args.string("flips.compare: b", b, 2)
  local o = option.table("flips.compare", options, M.rows, 2)
  local id_field, value_field = o.id, o.right
  local first, err = read(a, id_field, value_field)
  if not first then return nil, err end
  local second
  second, err = read(b, id_field, value_field)
  if not second then return nil, err end
  local self = setmetatable({
    a = a, b = b, n = 0, right_a = 0, right_b = 0, better = 0, worse = 0, only_a = {}, only_b = {},
  }, Flips)
  for id, right in pairs(first) do
    local other = second[id]
    if other == nil then self.only_a[#self.only_a + 1] = id
    else
      self.n = self.n + 1
      self.right_a, self.right_b = self.right_a + (right and 1 or 0), self.right_b + (other and 1 or 0)
      if right and not other then self.worse = self.worse + 1 end
      if other and not right then self.better = self.better + 1 end
    end
  end
  for id in pairs(second) do
    if first[id] == nil then self.only_b[#self.only_b + 1] = id end
  end
  table.sort(self.only_a)
  table.sort(self.only_b)
  if self.n > 0 then
    self.p = M.mcnemar(self.better, self.worse)
    self.interval_a, self.interval_b = { M.wilson(self.right_a, self.n) }, { M.wilson(self.right_b, self.n) }
  end
  self.smallest = M.smallest_seen(self.better + self.worse)
  return self
end

local SHOWN_IDS = 5

local function missing(ids, file, other)
  if #ids == 0 then return nil end
  local one = #ids == 1
  return ("%d item%s of %s %s not in %s and left out: %s%s"):format(#ids, one and "" or "s", file, one and "is" or "are", other,
    table.concat(ids, ", ", 1, math.min(#ids, SHOWN_IDS)), #ids > SHOWN_IDS and ", .." or "")
end

function Flips:__tostring()
  local lines = {}
  local function add(line) lines[#lines + 1] = line end
  add(missing(self.only_a, self.a, self.b))
  add(missing(self.only_b, self.b, self.a))
  if self.n == 0 then
    add("no item stands in both files: nothing compared")
    return table.concat(lines, "\n")
  end
  local function arm(file, right, interval)
    add(("%s: %d of %d right, %.1f %% (95 %% %.1f to %.1f, Wilson)"):format(file, right, self.n, 100 * right / self.n,
      100 * interval[1], 100 * interval[2]))
  end
  arm(self.a, self.right_a, self.interval_a)
  arm(self.b, self.right_b, self.interval_b)
  local flips = self.better + self.worse
  add(("%d items turned right, %d turned wrong: p = %.4g (McNemar's exact two-sided test)"):format(self.better, self.worse,
    self.p))
  if self.p < 0.05 then add(("a difference is seen: %+d right answers"):format(self.better - self.worse))
  elseif self.smallest then
    add(("no difference seen; with %d flips the smallest that could be seen is %d right answers (%.2f %% of the items)"):format(
      flips, self.smallest, 100 * self.smallest / self.n))
  else
    add(("no difference seen; %d flips are too few to show one (6 at least)"):format(flips))
  end
  return table.concat(lines, "\n")
end

return M
