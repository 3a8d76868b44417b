--- Files that are whole or not there: what a run leaves behind takes its name only when all of it is written.
--
--   local file = require "fewhead.record.file"
--   assert(file.write("results/local/x.md", text))

local args = require "fewhead.base.arguments"
local posix = require "fewhead.base.posix"

local M = {}

local Writer = {}
Writer.__index = Writer

--- A file written piece by piece that takes its name only when it is whole: pieces go to "<path>.<pid>.tmp" beside it, commit()
--- renames that over `path`, discard() removes it. Until commit, whatever stood at `path` stays. Returns writer | nil, error.
function M.writer(path)
  args.string("file.writer: path", path, 2)
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
  args.string("file.write: path", path, 2)
  args.string("file.write: text", text, 2)
  local writer, err = M.writer(path)
  if not writer then return nil, err end
  local ok
  ok, err = writer:add(text)
  if not ok then return nil, err end
  return writer:commit()
end

return M
