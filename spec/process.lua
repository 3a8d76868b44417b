--- Run a command as a person would and look at all it did: for specs of what is started from a shell.
--
--     local process = require "spec.process"
--     local status, out, err = process.run({ "./fewhead", "info" }, { stdin = "", env = { FEWHEAD_ISA = "avx2" }, cwd = "/" })
--     local path = process.write(folder .. "x.lua", "print(1)")
local helper = require "spec.helper"

local M = {}

--- The checkout, absolute, without a slash at its end.
M.root = helper.shell(("cd %s && pwd -P"):format(helper.quoted(helper.root)))

M.read, M.write = helper.read, helper.write

function M.remove(folder) helper.shell("rm -rf " .. helper.quoted(folder)) end

--- Run words (a list, or a text for the shell). options: stdin (text, default none), env (name = value; false unsets), cwd
-- (default: the checkout). Returns exit status, standard output, standard error.
function M.run(words, options)
  options = options or {}
  local command = words
  if type(words) == "table" then
    local quoted = {}
    for i, word in ipairs(words) do quoted[i] = helper.quoted(word) end
    command = table.concat(quoted, " ")
  end
  local lines = { ("cd %s || exit 125"):format(helper.quoted(options.cwd or M.root)) }
  for name, value in pairs(options.env or {}) do
    lines[#lines + 1] = value and ("export %s=%s"):format(name, helper.quoted(value)) or "unset " .. name
  end
  lines[#lines + 1] = command
  local folder = helper.folder()
  M.write(folder .. "in", options.stdin or "")
  M.write(folder .. "script", table.concat(lines, "\n") .. "\n")
  os.execute(("cd %s && { sh script <in >out 2>err; echo $? >status; }"):format(helper.quoted(folder)))
  local status, out, err = tonumber(M.read(folder .. "status")), M.read(folder .. "out"), M.read(folder .. "err")
  M.remove(folder)
  return status, out, err
end

return M
