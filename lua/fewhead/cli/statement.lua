--- Statements of a prompt: what was typed becomes a function whose locals outlive it, and errors name the line that was typed.
--
--     local session = statement.session()
--     local run = session:compile("local x = 2 + 3")      -- nil, nil: more lines are needed; nil, err: it is wrong
--     run()
--     session:compile("x")()                              --> 5
--
-- A `local` outside of all blocks and functions is kept by the session: later statements see it, files that they load do not.
-- Everything else that is assigned is a global, as in a script.
local M = {}

-- ---- Words of Lua ------------------------------------------------------------------------------------------------------------

-- The end of a long bracket that starts at `at`, and nil where none starts there or it does not end.
local function long_end(text, at)
  local equals = text:match("^%[(=*)%[", at)
  if not equals then return nil end
  local _, last = text:find("]" .. equals .. "]", at, true)
  return last or #text
end

-- The end of a quoted string that starts at `at`.
local function quoted_end(text, at)
  local quote, i = text:sub(at, at), at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\\" then i = i + 1
    elseif c == quote then return i
    end
    i = i + 1
  end
  return #text
end

--- The words of Lua source: a list of { kind =, first =, last = }, kind one of "name" (keywords too), "number", "string",
-- "comment", "sign". A string or comment that does not end takes the rest of the text and has open = true.
function M.words(text)
  local list, at = {}, 1
  local function add(kind, last, open)
    list[#list + 1] = { kind = kind, first = at, last = last, open = open }
    at = last + 1
  end
  while true do
    at = text:find("%S", at)
    if not at then return list end
    local c = text:sub(at, at)
    if text:sub(at, at + 1) == "--" then
      local long = long_end(text, at + 2)
      add("comment", long or (text:find("\n", at, true) or #text + 1) - 1)
    elseif c == '"' or c == "'" then
      local last = quoted_end(text, at)
      add("string", last, last == at or text:sub(last, last) ~= c)
    elseif long_end(text, at) then
      local last = long_end(text, at)
      add("string", last, not text:sub(at, last):find("%]=*%]$"))
    elseif c:find("[%a_]") then add("name", select(2, text:find("^[%w_]+", at)))
    elseif c:find("%d") or text:find("^%.%d", at) then add("number", select(2, text:find("^[%w.]+", at)))
    else add("sign", at)
    end
  end
end

local OPENS = { ["function"] = true, ["do"] = true, ["if"] = true, ["repeat"] = true }
local CLOSES = { ["end"] = true, ["until"] = true }

--- The name by which statements reach the session's locals.
local KEPT = "__kept"

-- The source with every top-level `local` made an assignment to `prefix` and its name, on the same lines.
local function assign_locals(text, prefix)
  local words, depth, parts, done = {}, 0, {}, 0
  for _, word in ipairs(M.words(text)) do
    if word.kind ~= "comment" then
      word.text = text:sub(word.first, word.last)
      words[#words + 1] = word
    end
  end
  local function put(last, new) -- what stands up to `last` stays, then comes `new`
    parts[#parts + 1] = text:sub(done + 1, last) .. new
    done = last
  end
  local i = 1
  while words[i] do
    local word = words[i]
    if word.kind == "name" and OPENS[word.text] then depth = depth + 1
    elseif word.kind == "name" and CLOSES[word.text] then depth = depth - 1
    elseif word.text == "local" and depth == 0 then
      put(word.first - 1, "")
      done = word.last
      if words[i + 1].text == "function" then
        depth, i = depth + 1, i + 1
        put(words[i].last, " " .. prefix)
        done = words[i + 1].first - 1
      else
        repeat
          i = i + 1
          put(words[i].first - 1, prefix)
          put(words[i].last, "")
          i = i + 1
        until not words[i] or words[i].text ~= ","
        if not words[i] or words[i].text ~= "=" then put(words[i - 1].last, " = nil;") end
        i = i - 1
      end
    end
    i = i + 1
  end
  return table.concat(parts) .. text:sub(done + 1)
end

local function keep_locals(text) return assign_locals(text, KEPT .. ".") end

--- The source with every top-level `local` made an assignment to a global of its name.
function M.without_locals(text) return assign_locals(text, "") end

--- Statements with an expression behind the last semicolon, "x = 5; x + 1": the text of the statements, that of the expression;
-- nil for other text.
function M.split(text)
  local at
  for _, word in ipairs(M.words(text)) do
    if text:sub(word.first, word.last) == ";" then at = word.first end
  end
  local before, value = text:sub(1, at or 0), text:sub((at or 0) + 1)
  if at and loadstring(before) and loadstring("return nil, " .. value) then return before, value end
end

-- ---- Sessions ----------------------------------------------------------------------------------------------------------------

-- Lua's own message for text that ends too early.
local function incomplete(err) return err:find("'<eof>'$") ~= nil end

-- A compiled loop does not look for Ctrl-C, an interpreted one does; what is typed here is short enough to be interpreted.
local function interruptible(chunk)
  jit.off(chunk, true)
  return chunk
end

local function drop_first(_, ...) return ... end

local Session = { __name = "session" }
Session.__index = Session

--- A session without statements. Fields: number, of the statement that is compiled next; source[n], the text of statement n;
-- locals, by name; environment, in which statements run: locals before globals.
function M.session()
  local values, declared = {}, {}
  local kept = setmetatable({}, {
    __index = values,
    __newindex = function(_, name, value) values[name], declared[name] = value, true end,
  })
  local environment = setmetatable({}, {
    __index = function(_, name)
      if declared[name] then return values[name] end
      if name == KEPT then return kept end
      return _G[name]
    end,
    __newindex = function(_, name, value)
      if declared[name] then values[name] = value else _G[name] = value end
    end,
  })
  return setmetatable({ number = 1, source = {}, locals = values, environment = environment }, Session)
end

--- What errors call statement n: In[n].
function M.chunk_name(n) return ("In[%d]"):format(n) end

--- Compile what was typed so far. Returns a function and whether it is an expression; or nil and the error; or nil alone when
-- more lines are needed. An expression, with or without "=" before it, returns its values, and so does one
-- behind statements and a semicolon.
function Session:compile(text)
  local name = "=" .. M.chunk_name(self.number)
  local function made(chunk) return interruptible(setfenv(chunk, self.environment)) end
  local expression = text:match("^%s*=(.*)$")
  -- A plain `return f()` would be a tail call, and an error in f would not name the line that was typed.
  local values, err = loadstring("return nil, " .. (expression or text), name)
  if values then
    made(values)
    return function() return drop_first(values()) end, true
  end
  if incomplete(err) then return nil end
  if not expression then
    local before, value = M.split(text)
    if before then
      local rest = before:gsub("[^\n]", "") .. "return nil, " .. value -- on the lines on which it stands
      local first, last = made(assert(loadstring(keep_locals(before), name))), made(assert(loadstring(rest, name)))
      return function()
        first()
        return drop_first(last())
      end, true
    end
    local statement
    statement, err = loadstring(text, name)
    if not statement and incomplete(err) then return nil end
    -- More locals than a function may have are no more than that many fields of the session.
    if statement or err:find("too many local variables", 1, true) or err:find("more than %d+ local variables") then
      statement, err = loadstring(keep_locals(text), name)
    end
    if statement then return made(statement), false end
  end
  return nil, err
end

--- Note the text of the statement that was compiled last, and count it.
function Session:count(text)
  self.source[self.number] = text
  self.number = self.number + 1
end

--- The typed line that an error message names, as a line to print below it; nil where it names none, or the only line of the
-- statement that was counted last, which is on the screen.
function Session:line_of(message)
  local n, line = message:match("^In%[(%d+)%]:(%d+):")
  local source = self.source[tonumber(n)]
  if not source or (tonumber(n) == self.number - 1 and not source:find("\n")) then return nil end
  local at = 0
  for text in (source .. "\n"):gmatch("([^\n]*)\n") do
    at = at + 1
    if at == tonumber(line) then return ("  %d | %s"):format(at, text) end
  end
end

return M
