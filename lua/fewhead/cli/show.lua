--- How the prompt prints values: tables by their contents, within limits; objects by what they say of themselves.
--
--     print(show.text({ 1, { "two" } }))        --> { 1, { "two" } }
local args = require "fewhead.base.arguments"
local exit = require "fewhead.cli.exit"
local object = require "fewhead.cli.show_object"
local tensor = require "fewhead.device.tensor"

local M = {}

--- A table is printed on one line up to `width` columns, else indented and wrapped there; `depth` tables deep, `items` entries a
-- table. The prompt's :set changes these.
M.limits = { width = 100, depth = 3, items = 32 }
M._kept = { "limits" }
local limits = M.limits

local show

local function key_text(key)
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return key end
  return "[" .. args.show(key) .. "]"
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    if type(a) == "number" or type(a) == "string" then return a < b end
    return exit.text(a) < exit.text(b)
  end)
  return keys
end

-- The entries of a table as text, at most limits.items and what is left out.
local function parts_of(t, depth, above)
  local parts, shown, count = {}, {}, 0
  for i, value in ipairs(t) do
    if i > limits.items then break end
    parts[i], shown[i] = show(value, depth - 1, above), true
  end
  for _, key in ipairs(sorted_keys(t)) do
    count = count + 1
    local in_list = type(key) == "number" and key >= 1 and key <= #t and key == math.floor(key)
    if #parts < limits.items and not shown[key] and not in_list then
      parts[#parts + 1] = key_text(key) .. " = " .. show(t[key], depth - 1, above)
    end
  end
  if count > #parts then parts[#parts + 1] = (".. %d more"):format(count - #parts) end
  return parts
end

local function show_table(t, depth, above)
  if above[t] then return "{ itself }" end
  if next(t) == nil then return "{}" end
  if depth == 0 then return "{ .. }" end
  above[t] = true
  local parts = parts_of(t, depth, above)
  above[t] = nil
  local line = "{ " .. table.concat(parts, ", ") .. " }"
  if #line <= limits.width and not line:find("\n") then return line end
  local lines, last = {}, ""
  for i, part in ipairs(parts) do
    part = part:gsub("\n", "\n  ") .. (i < #parts and "," or "")
    if last ~= "" and (#last + #part >= limits.width or part:find("\n")) then
      lines[#lines + 1], last = last, ""
    end
    last = last == "" and "  " .. part or last .. " " .. part
  end
  lines[#lines + 1] = last
  return "{\n" .. table.concat(lines, "\n") .. "\n}"
end

function show(value, depth, above)
  local meta = getmetatable(value)
  local speaks = type(meta) == "table" and meta.__tostring
  if type(value) == "table" and not speaks then return show_table(value, depth, above) end
  if type(value) == "number" or type(value) == "string" then return args.show(value) end
  if type(value) == "function" then return "function" end
  local ok, text = pcall(tostring, value)
  if ok and type(text) == "string" then return text end
  return ("a %s whose __tostring fails: %s"):format(type(value), exit.text(text))
end

-- ---- Tensors -----------------------------------------------------------------------------------------------------------------

-- Elements that are read for the smallest, the largest and the count of NaNs; rows and columns shown at each end of a tensor.
local MOST_READ, CORNER = 2 ^ 24, 3

-- Which of n places are shown: all up to 2 * CORNER, else CORNER at each end with 0 between for "..".
local function corners(n)
  local list = {}
  if n <= 2 * CORNER then
    for i = 1, n do list[i] = i end
    return list
  end
  for i = 1, CORNER do list[i] = i end
  list[#list + 1] = 0
  for i = n - CORNER + 1, n do list[#list + 1] = i end
  return list
end

local function element(t, place)
  local v = t:get(unpack(place))
  if v ~= v then return "nan" end
  return (t.dtype == "i32" and "%d" or "%.4g"):format(v)
end

-- The corner values: the last dimension in columns, the one before it in rows, the first place of those further out.
local function corner_lines(t)
  local place = {}
  for i = 1, t.rank do place[i] = 1 end
  local grid, widest = {}, 0
  for _, row in ipairs(t.rank > 1 and corners(t.shape[t.rank - 1]) or { 1 }) do
    local cells = {}
    for _, column in ipairs(corners(t.shape[t.rank])) do
      if t.rank > 1 then place[t.rank - 1] = row end
      place[t.rank] = column
      cells[#cells + 1] = (row == 0 or column == 0) and ".." or element(t, place)
      widest = math.max(widest, #cells[#cells])
    end
    grid[#grid + 1] = cells
  end
  local lines = {}
  for i, cells in ipairs(grid) do
    for j, cell in ipairs(cells) do cells[j] = (" "):rep(widest - #cell) .. cell end
    lines[i] = "  " .. table.concat(cells, "  ")
  end
  return lines
end

-- "min -3.1, max 2.9, 4 NaN", from the elements on the host.
local function range_text(t)
  if t.numel > MOST_READ then return ("%d elements: too many to read for min and max"):format(t.numel) end
  local host, n = t:read()
  if not host then return "cannot be read: " .. tostring(n) end
  local least, most, nans = math.huge, -math.huge, 0
  for i = 0, n - 1 do
    local v = t.dtype == "bf16" and tensor.to_float(host[i]) or host[i]
    if v ~= v then nans = nans + 1
    else least, most = math.min(least, v), math.max(most, v)
    end
  end
  if nans == n then return ("%d NaN, nothing else"):format(nans) end
  local range = ("min %.6g, max %.6g"):format(least, most)
  return t.dtype == "i32" and range or ("%s, %d NaN"):format(range, nans)
end

-- A tensor in several lines: dtype, shape, device; corner values; the smallest, the largest, and how many NaNs.
local function tensor_text(t)
  if not t.handle or t.numel == 0 or t.rank == 0 then return tostring(t) end
  local head = ("%s [%s] on %s"):format(t.dtype, table.concat(t.shape, ", "), t.device.name)
  return table.concat({ head, table.concat(corner_lines(t), "\n"), "  " .. range_text(t) }, "\n")
end

-- Text without what would change a terminal: a control character is shown as Lua writes it.
local function printable(text)
  return (text:gsub("[%z\1-\8\11-\31\127]", function(c) return ("\\%d"):format(c:byte()) end))
end

--- How the prompt prints a value: tables by their contents, tensors by corner values, least and largest element and count of
-- NaNs, gates, plans, lists of records and modules as tables, anything else with a __tostring by that, strings in quotes. Text of
-- several lines (a table of results, say) is printed as it is, but for control characters.
function M.text(value)
  if type(value) == "string" then return printable(value:find("\n") and value or ("%q"):format(value)) end
  local meta = getmetatable(value)
  if type(meta) == "table" and meta.__name == "tensor" then return tensor_text(value) end
  local ok, text = pcall(object.text, value)
  return printable(ok and text or show(value, limits.depth, {}))
end

return M
