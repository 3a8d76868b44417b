--- Reload: the project's modules are loaded anew from their files, and what was made before goes on working.
--
--     local names = require("fewhead.cli.reload").run()      --> 34, how many modules; or nil, "gate.lua:12: '=' expected .."
--
-- Objects and modules keep their identity. The new file gives its functions to the old tables: to the module that scripts hold,
-- and to the class that objects made before have. So an old tensor has the new methods, and new functions take an old tensor.
-- What stays as it was: declarations of C, the loaded C library, functions that a script has stored by themselves.
--
-- A module can name locals that outlive a reload, in M._kept: the count of live bytes, say. Weak tables are kept too, since what
-- they know belongs to objects made before.
-- @module fewhead.cli.reload
local checkout = require "fewhead.base.checkout"

local M = {}

-- These run while the others are loaded anew, and readline keeps the addresses of functions in them.
local STAYS = { ["fewhead.cli.reload"] = true, ["fewhead.cli.repl"] = true, ["fewhead.cli.readline"] = true }

-- Whether a function stands in a file of the project.
local function is_own(f)
  local path = checkout.place(f)
  return path ~= nil and path:sub(1, #checkout.modules) == checkout.modules
end

-- The upvalues of a function by name: { value =, at = number }.
local function upvalues_of(f)
  local list, i = {}, 1
  while true do
    local name, value = debug.getupvalue(f, i)
    if not name then return list end
    list[name] = { value = value, at = i }
    i = i + 1
  end
end

local function is_weak(t)
  local meta = debug.getmetatable(t)
  return meta ~= nil and rawget(meta, "__mode") ~= nil
end


-- Tables that are not the project's: what they hold is left alone.
local function is_foreign(t) return t == _G or t == package.loaded or t == package or t == debug.getregistry() end

-- ---- Which old table a new one stands for ------------------------------------------------------------------------------------

-- From now on the old table stands for the new one; each old table stands for one new table only.
local function keep(job, old, new)
  if job.old[new] or job.taken[old] then return end
  job.old[new], job.taken[old], job.stays[new] = old, true, job.stays[new] or is_weak(new) or nil
end

-- Go through an old and a new value side by side, and keep the old tables and the locals that M._kept names.
local function pair(job, old, new)
  if type(old) ~= type(new) or rawequal(old, new) or job.paired[new] then return end
  if type(new) == "table" and not is_foreign(new) then
    job.paired[new] = true
    keep(job, old, new)
    for key, value in next, new do pair(job, rawget(old, key), value) end
    pair(job, debug.getmetatable(old), debug.getmetatable(new))
  elseif type(new) == "function" and is_own(old) and is_own(new) then
    job.paired[new] = true
    local before, kept = upvalues_of(old), job.kept[checkout.place(new)] or {}
    for name, now in pairs(upvalues_of(new)) do
      if before[name] then
        if kept[name] then
          job.joins[#job.joins + 1] = { new, now.at, old, before[name].at }
          if type(now.value) == "table" then job.stays[now.value] = true end
        else pair(job, before[name].value, now.value)
        end
      end
    end
  end
end

-- ---- Putting old tables in place of new ones ---------------------------------------------------------------------------------

-- Make everything that is reachable from a new value refer to the old tables.
local function refer(job, value)
  if job.seen[value] then return end
  if type(value) == "table" and not is_foreign(value) then
    job.seen[value] = true
    local changed = {}
    for key, field in next, value do
      refer(job, key)
      refer(job, field)
      if job.old[key] or job.old[field] then changed[key] = field end
    end
    for key, field in next, changed do
      rawset(value, key, nil)
      rawset(value, job.old[key] or key, job.old[field] or field)
    end
    local meta = debug.getmetatable(value)
    if meta then
      refer(job, meta)
      if job.old[meta] then debug.setmetatable(value, job.old[meta]) end
    end
  elseif type(value) == "function" and is_own(value) then
    job.seen[value] = true
    for _, up in pairs(upvalues_of(value)) do
      refer(job, up.value)
      if job.old[up.value] then debug.setupvalue(value, up.at, job.old[up.value]) end
    end
  end
end

-- Give an old table what the new one holds.
local function fill(old, new)
  for key in next, old do rawset(old, key, nil) end
  for key, value in next, new do rawset(old, key, value) end
  debug.setmetatable(old, debug.getmetatable(new))
end

-- ---- The whole ---------------------------------------------------------------------------------------------------------------

-- The project's modules that are loaded, by name, and their names in order.
local function loaded()
  local modules, names = {}, {}
  for name, module in pairs(package.loaded) do
    if type(name) == "string" and (name == "fewhead" or name:find("^fewhead%.")) and not STAYS[name] then
      modules[name], names[#names + 1] = module, name
    end
  end
  table.sort(names)
  return modules, names
end

--- Load the modules that are loaded anew. Returns how many; or nil and the error of a file, and then all is as it was.
function M.run()
  local before, names = loaded()
  for _, name in ipairs(names) do package.loaded[name] = nil end
  for _, name in ipairs(names) do
    local ok, err = pcall(require, name)
    if not ok then
      for _, one in ipairs((select(2, loaded()))) do package.loaded[one] = nil end
      for one, module in pairs(before) do package.loaded[one] = module end
      return nil, (tostring(err):gsub("^error loading module '[^']*' from file '[^']*':%s*", ""))
    end
  end
  local now, job = loaded(), { old = {}, taken = {}, paired = {}, stays = {}, seen = {}, joins = {}, kept = {} }
  local both = {}
  for _, name in ipairs(names) do
    if type(before[name]) == "table" and type(now[name]) == "table" then
      local kept = {}
      for _, one in ipairs(rawget(now[name], "_kept") or {}) do kept[one] = true end
      both[#both + 1], job.kept[package.searchpath(name, package.path) or ""] = name, kept
      keep(job, before[name], now[name])
    end
  end
  for _, name in ipairs(both) do
    pair(job, before[name], now[name])
  end
  for _, join in ipairs(job.joins) do debug.upvaluejoin(unpack(join)) end
  for _, module in pairs(now) do refer(job, module) end
  for new, old in pairs(job.old) do
    if not job.stays[new] then fill(old, new) end
  end
  for name, module in pairs(now) do package.loaded[name] = job.old[module] or module end
  jit.flush() -- compiled code has the new tables' addresses in it
  return #names
end

return M
