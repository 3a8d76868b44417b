--- Merge: the parts of a sweep, each measured by a process or a node of its own, put together to the run that one process would
-- have made.
--
--   local merge = require "fewhead.record.merge"
--   local run, problems = merge.merge({ "out/shard-1-of-2/latest", "out/shard-2-of-2/latest" }, "results/local", "gate_sweep")
--
-- Nothing is merged unless every part is there once and whole, and all are of one sweep, build, device and number of parts.

local store = require "fewhead.record.store"

local M = {}

-- The parts as { folder =, head =, done =, order = }; what is wrong with a folder goes to problems.
local function read(folders, problems)
  local parts = {}
  for _, path in ipairs(folders) do
    local folder, err = store.folder(path, store.is_sweep)
    local head, done, order
    if folder then head, err = store.head(folder) end
    if head then done, order = store.cells(folder) end
    if head and not done then err = order end
    if err then problems[#problems + 1] = err
    elseif type(head.shard) ~= "table" then problems[#problems + 1] = path .. ": no part of a sweep, it was run without --shard"
    else parts[#parts + 1] = { path = path, head = head, done = done, order = order } end
  end
  return parts
end

-- Parts that are not of the first one's sweep.
local function check_mixed(parts, problems)
  local first = parts[1]
  for i = 2, #parts do
    local part = parts[i]
    local function differs(what, a, b)
      if a ~= b then
        problems[#problems + 1] = ("%s: mixed: %s: %s, in %s %s"):format(part.path, what, tostring(b), first.path, tostring(a))
      end
    end
    differs("parts", first.head.shard[2], part.head.shard[2])
    differs("cells of the sweep", first.head.plan, part.head.plan)
    local other = store.differences(first.head.fingerprint, part.head.fingerprint)
    if other then problems[#problems + 1] = ("%s: mixed: %s, against %s"):format(part.path, other, first.path) end
  end
end

-- Parts that are missing, double or not whole, and cells that stand in two.
local function check_whole(parts, problems)
  local by_number, n = {}, parts[1].head.shard[2]
  for _, part in ipairs(parts) do
    local i = part.head.shard[1]
    if part.head.shard[2] == n then
      if by_number[i] then
        problems[#problems + 1] = ("part %d/%d: double: %s and %s"):format(i, n, by_number[i].path, part.path)
      end
      by_number[i] = part
    end
    if #part.order < part.head.cells then
      problems[#problems + 1] = ("part %d/%d: %d of %d cells are missing: %s"):format(i, part.head.shard[2],
        part.head.cells - #part.order, part.head.cells, part.path)
    end
  end
  for i = 1, n do
    if not by_number[i] then problems[#problems + 1] = ("part %d/%d: missing"):format(i, n) end
  end
end

-- All cells in the order of the plan, { id, records }.
local function cells_of(parts, problems)
  local cells, seen = {}, {}
  for _, part in ipairs(parts) do
    for _, id in ipairs(part.order) do
      if seen[id] then problems[#problems + 1] = ("cell %s: double: %s and %s"):format(id, seen[id], part.path) end
      seen[id] = part.path
      cells[#cells + 1] = { id, part.done[id] }
    end
  end
  table.sort(cells, function(a, b) return a[2][1].cell.at < b[2][1].cell.at end)
  return cells
end

--- Put the parts in these folders together to a new run in `out` called name. Returns the run, finished; nil and a list of lines,
-- one a problem: a part that is missing, double, not whole, or of another sweep.
function M.merge(folders, out, name)
  local problems = {}
  local parts = read(folders, problems)
  if #parts > 0 then
    check_mixed(parts, problems)
    check_whole(parts, problems)
  end
  if #parts == 0 and #problems == 0 then problems[1] = "no folders given" end
  if #problems > 0 then return nil, problems end
  local cells = cells_of(parts, problems)
  if #problems > 0 then return nil, problems end
  local head, noise = {}, nil
  for key, value in pairs(parts[1].head) do head[key] = value end
  for _, part in ipairs(parts) do noise = math.max(noise or 0, part.head.noise_floor or 0) end
  head.shard, head.sequence, head.name, head.cells, head.parts, head.noise_floor = nil, nil, nil, #cells, #parts, noise
  head.control = nil -- of one part
  local run, err = store.create((store.place(out)), name, head)
  if not run then return nil, { err } end
  for _, cell in ipairs(cells) do
    local ok
    ok, err = run:add(cell[1], cell[2][1].cell.at, cell[2])
    if not ok then return nil, { err } end
  end
  local ok
  ok, err = run:finish { state = "complete", measured = #cells, reused = 0 }
  if not ok then return nil, { err } end
  return run
end

return M
