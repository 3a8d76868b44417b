-- How long records take to be read, compared and drawn: CPU seconds of each step.
--
--   luajit tools/bench_results.lua [COUNT]       COUNT records (100000), made from results/nvidia-h200/packed.jsonl
--
-- The records lie in two files, as two runs would leave them. Run it in the checkout's root, on an idle machine.
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
local diff = require "fewhead.report.diff"
local page = require "fewhead.report.page"
local pictures = require "fewhead.report.pictures"
local source = require "fewhead.report.source"

local count = tonumber(arg[1]) or 100000
local lines = {}
for line in io.lines("results/nvidia-h200/packed.jsonl") do lines[#lines + 1] = line end

-- A file of records: those lines again and again, with another seed each time.
local function write(path, n)
  local file = assert(io.open(path, "w"))
  for i = 0, n - 1 do
    local line = lines[i % #lines + 1]:gsub('"seed":0', ('"seed":%d'):format(math.floor(i / #lines)), 1)
    assert(file:write(line, "\n"))
  end
  assert(file:close())
end

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir -p " .. folder) == 0)
write(folder .. "/a.jsonl", math.floor(count / 2))
write(folder .. "/b.jsonl", math.ceil(count / 2))

local function time(what, f)
  local start = os.clock()
  local result = f()
  print(("%-40s %6.2f s"):format(what, os.clock() - start))
  return result
end

local whole = os.clock()
local found = time(("read and merge %d records"):format(count), function() return assert(source.read(folder)) end)
time("draw the curves", function() return assert(pictures.curves(found.records)) end)
print(("%-40s %6.2f s"):format("both", os.clock() - whole))
local some = { unpack(found.records, 1, math.min(2000, #found.records)) }
local html = time(("the page of %d records"):format(#some), function() return page.html(some) end)
print(("%-40s %6.2f MB"):format("its size", #html / 1e6))
time(("compare %d records with themselves"):format(#some), function() return assert(diff(some, some)) end)
os.execute("rm -r " .. folder)
