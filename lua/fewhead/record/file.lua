--- Files that are whole or not there: what a run leaves behind takes its name only when all of it is written.
--
--   local file = require "fewhead.record.file"
--   assert(file.write("results/local/x.md", text))

local args = require "fewhead.base.arguments"
local posix = require "fewhead.base.posix"
local temporary = require "fewhead.base.temporary"

local M = {}

local Writer = {}
Writer.__index = Writer

--- A file written piece by piece that takes its name only when it is whole: pieces go to a temporary file beside it
-- (fewhead.base.temporary), commit() renames that over `path`, discard() removes it. Until commit, whatever stood at `path`
-- stays. Returns writer | nil, error.
function M.writer(path)
  args.string("file.writer: path", path, 2)
  local made, err = posix.make_folders(path)
  if not made then return nil, ("%s: %s"):format(path, err) end
  local file, name = temporary.create(path)
  if not file then return nil, ("%s: %s"):format(path, name:match("^.*: (.-)$") or name) end
  return setmetatable({ path = path, temporary = name, file = file, bytes = 0 }, Writer)
end

-- Give the file its name, even one that was cut. true | nil, error; where it cannot have its name it is gone.
local function rename(self)
  local ok, err = os.rename(self.temporary, self.path)
  if not ok then os.remove(self.temporary) end
  return ok, err
end

-- Ends the writer after a failure. The pieces before it take the file's name where there are any.
local function keep(self)
  pcall(self.file.close, self.file) -- writes what is still buffered, if it can
  self.file = nil
  if self.bytes > 0 and posix.truncate(self.temporary, self.bytes) and rename(self) then return "; the file ends before it" end
  os.remove(self.temporary)
  return ""
end

--- Append text and hand it to the system, so that a killed run leaves whole pieces in the temporary file. true | nil, error: the
-- disk is full, say. The pieces before then stand at `path`, as the error says, and the writer takes no more; without any,
-- `path` is as it was.
function Writer:add(text)
  local ok, err = self.file:write(text)
  if ok then ok, err = self.file:flush() end
  if not ok then return nil, ("%s: %s%s"):format(self.path, err, keep(self)) end
  self.bytes = self.bytes + #text
  return true
end
jit.off(Writer.add) -- compiled, a flush that fails is tried again by the interpreter, and the second time says nothing

--- Put the file in place. true | nil, error; on an error of the disk what it took stands at `path`.
function Writer:commit()
  local file = self.file
  self.file = nil
  local ok, err = posix.sync(file)
  local closed, close_err = file:close()
  local named, name_err = rename(self)
  if ok and closed and named then return true end
  return nil, ("%s: %s"):format(self.path, tostring(err or close_err or name_err))
end

--- Drop what was written. Safe after commit and twice.
function Writer:discard()
  if not self.file then return end
  pcall(self.file.close, self.file)
  self.file = nil
  os.remove(self.temporary)
end

--- The text of a file | nil, error.
function M.read(path)
  args.string("file.read: path", path, 2)
  local file, err = io.open(path, "rb")
  if not file then return nil, err end
  local text
  text, err = file:read("*a")
  file:close()
  if not text then return nil, ("%s: %s"):format(path, err) end
  return text
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
