-- Runs what robustness stands on and writes docs/robustness.md: for each item its input, the right answer and the result.
--
--   luajit tools/robustness.lua build/spec          C programs in build/spec; behind `make robustness`
--
-- The rows stand in spec/robustness/items.lua. A row without a test, and a test without a row, are failures: neither is left
-- out in silence. Prints what failed and ends with "N passed, M failed"; status 1 when something failed.

local DOCUMENT = "docs/robustness.md"

-- Lines that a shell command prints, errors too.
local function lines_of(command)
  local pipe, list = assert(io.popen(command .. " 2>&1")), {}
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

-- { name =, ok =, said = lines }, one for each test of spec/robustness.
local function specs()
  local list = {}
  for _, line in ipairs(lines_of("busted --output=TAP spec/robustness")) do
    local bad, name = line:match("^(n?o?t? ?)ok %d+ %- (.*)$")
    if name then
      local skipped = name:find("^# SKIP") ~= nil -- the spec says that this machine cannot run it
      list[#list + 1] = { name = name:gsub(" #robustness", ""), ok = bad == "", skipped = skipped, said = {} }
    elseif #list > 0 then
      table.insert(list[#list].said, line)
    end
  end
  return list
end

-- The same for one C program: its whole run is one test.
local function program(folder, name)
  local said = lines_of(("%s/%s; echo \"status $?\""):format(folder, name))
  return { name = name, ok = said[#said] == "status 0", said = said }
end

local function escaped(text) return (text:gsub("|", "\\|")) end

local folder = assert(arg[1], "usage: luajit tools/robustness.lua FOLDER-OF-C-PROGRAMS")
local items = dofile("spec/robustness/items.lua")
local tests, passed, failed, claimed = specs(), 0, 0, {}
local out = {
  "# Robustness\n", "`make robustness` runs every row below and writes this page. Rows are specs in `spec/robustness/`",
  "and C tests in `spec/c/`; the CPU device runs them.\n",
}

local function fail(what, said)
  failed = failed + 1
  print("failed: " .. what)
  for _, line in ipairs(said or {}) do print("  " .. line) end
end

for _, item in ipairs(items) do
  out[#out + 1] = ("## %s\n\n| input | right answer | result |\n| --- | --- | --- |"):format(item.title)
  for _, row in ipairs(item) do
    local found, ok, skipped = 0, true, false
    local function take(test)
      found, ok, skipped, claimed[test.name] = found + 1, ok and test.ok, skipped or test.skipped, true
      if not test.ok then fail(("%s: %s"):format(item.title, test.name), test.said) end
    end
    if row.program then take(program(folder, row.program)) end
    for _, test in ipairs(row.spec and tests or {}) do
      if test.name:find(row.spec, 1, true) then take(test) end
    end
    if found == 0 then fail(("%s: no test is called %s"):format(item.title, row.spec)) end
    ok = ok and found > 0
    if ok then passed = passed + 1 end
    local result = not ok and "**not so**" or skipped and "not run on this machine" or "as it should be"
    out[#out + 1] = ("| %s | %s | %s |"):format(escaped(row.input), escaped(row.right), result)
  end
  out[#out + 1] = ""
end
for _, test in ipairs(tests) do
  if not claimed[test.name] then fail(test.name .. ": no row of spec/robustness/items.lua names it", test.said) end
end

local file = assert(io.open(DOCUMENT, "w"))
assert(file:write(table.concat(out, "\n")))
assert(file:close())
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0 and 0 or 1)
