-- report: what a sweep leaves behind: aligned tables, markdown tables, and files that are whole or not there.
--
--   local report = require "fewhead.report.report"
--   print(report.table({ { s_q = 64, ratio = 1.5 } }, { { key = "s_q" }, { key = "ratio", format = "%.2f" } }))
--   assert(report.write("results/local/x.md", text))
--
-- A column is { key =, title = key, format = "%..." or function(value, row) -> text, align = "right" | "left" }. A value that is
-- nil prints as "-".

local args = require "fewhead.base.arguments"
local posix = require "fewhead.base.posix"

local M = {}

-- ---- Tables ----------------------------------------------------------------------------------------------------------------

-- Characters a terminal shows, not bytes: continuation bytes of UTF-8 take no column.
local function width(text)
  local _, continuation = text:gsub("[\128-\191]", "")
  return #text - continuation
end

local function cells(rows, columns, level)
  args.table("report: rows", rows, level + 1)
  args.table("report: columns", columns, level + 1)
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
function M.table(rows, columns)
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

-- ---- Files -----------------------------------------------------------------------------------------------------------------

local Writer = {}
Writer.__index = Writer

--- A file written piece by piece that takes its name only when it is whole: pieces go to "<path>.<pid>.tmp" beside it, commit()
--- renames that over `path`, discard() removes it. Until commit, whatever stood at `path` stays. Returns writer | nil, error.
function M.writer(path)
  args.string("report.writer: path", path, 2)
  local made, err = posix.make_folders(path)
  if not made then return nil, ("%s: %s"):format(path, err) end
  local temporary = ("%s.%d.tmp"):format(path, posix.pid())
  local file
  file, err = io.open(temporary, "wb")
  if not file then return nil, ("%s: %s"):format(path, err:match("^.*: (.-)$") or err) end
  return setmetatable({ path = path, temporary = temporary, file = file }, Writer)
end

--- Append text and hand it to the system, so that a killed run leaves whole lines in the temporary file. true | nil, error.
function Writer:add(text)
  local ok, err = self.file:write(text)
  if ok then ok, err = self.file:flush() end
  if not ok then
    self:discard()
    return nil, self.path .. ": " .. err
  end
  return true
end
jit.off(Writer.add) -- compiled, a flush that fails is tried again by the interpreter, and the second time says nothing

--- Put the file in place. true | nil, error; on an error the temporary file is gone and `path` is as it was.
function Writer:commit()
  local ok, err = posix.sync(self.file)
  if ok then ok, err = self.file:close() end
  if ok then ok, err = os.rename(self.temporary, self.path) end
  if not ok then
    self:discard()
    return nil, self.path .. ": " .. tostring(err)
  end
  self.file = nil
  return true
end

--- Drop what was written. Safe after commit and twice.
function Writer:discard()
  if not self.file then return end
  pcall(self.file.close, self.file)
  self.file = nil
  os.remove(self.temporary)
end

--- Write a whole file at once, atomically. true | nil, error.
function M.write(path, text)
  args.string("report.write: path", path, 2)
  args.string("report.write: text", text, 2)
  local writer, err = M.writer(path)
  if not writer then return nil, err end
  local ok
  ok, err = writer:add(text)
  if not ok then return nil, err end
  return writer:commit()
end

return M
