--- Tables of results: aligned text for a terminal, markdown for a page, and times with their unit.
--
--   local tables = require "fewhead.base.table"
--   print(tables.text({ { s_q = 64, ratio = 1.5 } }, { { key = "s_q" }, { key = "ratio", format = "%.2f" } }))
--
-- A column is { key =, title = key, format = "%..." or function(value, row) -> text, align = "right" | "left" }. A value that is
-- nil prints as "-".

local args = require "fewhead.base.arguments"

local M = {}

-- Characters a terminal shows, not bytes: continuation bytes of UTF-8 take no column.
local function width(text)
  local _, continuation = text:gsub("[\128-\191]", "")
  return #text - continuation
end

local function cells(rows, columns, level)
  args.table("table: rows", rows, level + 1)
  args.table("table: columns", columns, level + 1)
  local grid = {}
  for i, row in ipairs(rows) do
    grid[i] = {}
    for j, column in ipairs(columns) do
      local value = row[column.key]
      local text
      if value == nil then text = "-"
      elseif type(column.format) == "function" then text = column.format(value, row)
      elseif column.format and type(value) == "number" then text = column.format:format(value)
      else text = tostring(value) end
      grid[i][j] = text
    end
  end
  local titles = {}
  for j, column in ipairs(columns) do titles[j] = column.title or column.key end
  return grid, titles
end

local function pad(text, columns, align)
  local fill = (" "):rep(columns - width(text))
  return align == "left" and text .. fill or fill .. text
end

--- Aligned text: a line of titles, then a line a row; two spaces between columns, no line end after the last.
function M.text(rows, columns)
  local grid, titles = cells(rows, columns, 2)
  local widths = {}
  for j, title in ipairs(titles) do
    widths[j] = width(title)
    for i = 1, #grid do widths[j] = math.max(widths[j], width(grid[i][j])) end
  end
  local lines = {}
  local function line(texts)
    local out = {}
    for j, text in ipairs(texts) do out[j] = pad(text, widths[j], columns[j].align) end
    lines[#lines + 1] = (table.concat(out, "  "):gsub("%s+$", ""))
  end
  line(titles)
  for i = 1, #grid do line(grid[i]) end
  return table.concat(lines, "\n")
end

--- The same table in markdown, with a line end after each line.
function M.markdown(rows, columns)
  local grid, titles = cells(rows, columns, 2)
  local rule = {}
  for j, column in ipairs(columns) do rule[j] = column.align == "left" and "---" or "---:" end
  local lines = { titles, rule }
  for i = 1, #grid do lines[#lines + 1] = grid[i] end
  local out = {}
  for i, line in ipairs(lines) do
    local escaped = {}
    for j, text in ipairs(line) do escaped[j] = text:gsub("|", "\\|"):gsub("\n", " ") end
    out[i] = "| " .. table.concat(escaped, " | ") .. " |\n"
  end
  return table.concat(out)
end

--- Microseconds as a person reads them: "85.1 us", "1.20 ms", "2.53 s".
function M.time(us)
  if us < 1e3 then return ("%.1f us"):format(us) end
  if us < 1e6 then return ("%.2f ms"):format(us / 1e3) end
  return ("%.2f s"):format(us / 1e6)
end

return M
