-- How long records take to be read, compared and drawn: CPU seconds of each step.
--
--   luajit tools/bench_results.lua [COUNT]       COUNT records (100000), made from results/nvidia-h200/packed.jsonl
--
-- Where Chromium is installed, it opens the page too: the time until the page is loaded, and that of the slowest sort by a click.
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

-- Added to the page: sorts by each column, one after the other, then names the times in the page's title.
local SORTS = [[<script>addEventListener("load", () => {
  const loaded = performance.now(), heads = document.querySelector("table.rows").tHead.rows[0].cells;
  let slowest = 0;
  for (const head of heads) {
    const start = performance.now();
    head.click();
    document.body.offsetHeight; // lays the page out
    slowest = Math.max(slowest, performance.now() - start);
  }
  document.title = `${loaded} ${slowest}`;
});</script></body>]]
local file = assert(io.open(folder .. "/page.html", "w"))
assert(file:write((html:gsub("</body>", function() return SORTS end))))
assert(file:close())
local browser = io.popen(("timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir=%s/profile --dump-dom "
  .. "file://%s/page.html 2>/dev/null"):format(folder, folder))
local loaded, slowest = browser:read("*a"):match("<title>([%d.]+) ([%d.]+)</title>")
browser:close()
if loaded then
  print(("%-40s %6.2f s"):format("Chromium: loaded after", loaded / 1000))
  print(("%-40s %6.2f s"):format("Chromium: slowest sort", slowest / 1000))
else print "Chromium: not run, or the page was not loaded within 60 s" end
os.execute("rm -r " .. folder)
