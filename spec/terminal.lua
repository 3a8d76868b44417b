--- A terminal of its own for specs of what a person types: tmux runs a command, keys go in, the screen comes out.
--
--     local terminal = require "spec.terminal"
--     local t = terminal.open("./fewhead repl", { columns = 100, env = { TERM = "dumb" } })
--     t:type("1 + 1"); t:key "Enter"
--     t:wait "2\n"                       -- raises with the screen when this does not appear
--     t:close()
local helper = require "spec.helper"
local process = require "spec.process"

local M = {}

-- How long a text is waited for, in looks of a tenth of a second: a busy machine is slow.
local LOOKS = tonumber(os.getenv("FEWHEAD_TERMINAL_LOOKS")) or 300

local Terminal = {}
Terminal.__index = Terminal

local opened = 0

local function tmux(self, ...)
  local words = { "tmux", "-L", self.server }
  for _, word in ipairs { ... } do words[#words + 1] = word end
  for i, word in ipairs(words) do words[i] = helper.quoted(word) end
  return helper.shell(table.concat(words, " "))
end

--- Whether there are terminals here: tmux is installed and opens one. nil and the reason elsewhere.
function M.is_here()
  local _, status = helper.shell("command -v tmux")
  if status ~= 0 then return nil, "tmux is not installed" end
  local ok, t = pcall(M.open, "cat")
  if not ok then return nil, "tmux opens no terminal: " .. tostring(t) end
  t:close()
  return true
end

--- A terminal that runs a shell command in the checkout. options: columns (100), rows (50), env (name = value; false unsets). The
-- command's exit status is shown at its end as "status N".
function M.open(command, options)
  options = options or {}
  opened = opened + 1
  local self = setmetatable({ server = ("fewhead-%d-%d"):format(require("fewhead.base.posix").pid(), opened) }, Terminal)
  local lines = { ("cd %s"):format(helper.quoted(process.root)) }
  for name, value in pairs(options.env or {}) do
    lines[#lines + 1] = value and ("export %s=%s"):format(name, helper.quoted(value)) or "unset " .. name
  end
  lines[#lines + 1] = command
  lines[#lines + 1] = "echo status $?; cat"
  local out, status = tmux(self, "-f", "/dev/null", "new-session", "-d", "-x", tostring(options.columns or 100), "-y",
    tostring(options.rows or 50), table.concat(lines, "\n"))
  if status ~= 0 then error(out, 2) end
  return self
end

--- Type text as it stands.
function Terminal:type(text) tmux(self, "send-keys", "-l", "--", text) end

--- Press keys by tmux's names: "Enter", "Tab", "C-c", "C-d", "Up".
function Terminal:key(...) tmux(self, "send-keys", ...) end

--- Paste text as a terminal does: between marks where the program asked for them.
function Terminal:paste(text)
  helper.with_file(text, function(path)
    tmux(self, "load-buffer", path)
    tmux(self, "paste-buffer", "-p")
  end)
end

--- Change the number of columns.
function Terminal:resize(columns, rows) tmux(self, "resize-window", "-x", tostring(columns), "-y", tostring(rows or 50)) end

--- The screen as text, what scrolled away too, without blanks at line ends. joined: lines that the terminal wrapped are one.
function Terminal:screen(joined)
  local text = tmux(self, "capture-pane", "-p", "-S", "-3000", unpack(joined and { "-J" } or {}))
  return (text:gsub("[ \t]+\n", "\n"):gsub("%s+$", "\n"))
end

--- The screen with the escape codes of its colours.
function Terminal:escapes() return tmux(self, "capture-pane", "-p", "-e") end

--- Wait until the screen has this text, `times` times (1). Returns the screen; raises with it otherwise.
function Terminal:wait(text, times)
  for _ = 1, LOOKS do
    local screen, count, from = self:screen(true), 0, 1
    while true do
      local _, last = screen:find(text, from, true)
      if not last then break end
      count, from = count + 1, last + 1
    end
    if count >= (times or 1) then return screen end
    helper.shell("sleep 0.1")
  end
  error(("the screen does not show %q:\n%s"):format(text, self:screen()), 2)
end

--- End what runs.
function Terminal:close() tmux(self, "kill-server") end

return M
