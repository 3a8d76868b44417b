--- Axes: which fields of records vary, and which are the same in all: what a table has columns for and what its title says.
--
--     local axes = require "fewhead.record.axes"
--     local found = axes.of(records)
--     print(table.concat(found.varying, ", "))               --> pattern, s_q
--     print(found:constant_text())                           --> 8 heads, d_qk 512, topk 640, ratio 4, layout vllm
--     local some = axes.filter(records, { s_q = "64,128" })
--
-- A record is read as flat fields: those of its case, "call" and "l2" of how it was measured, the settings of its run (device,
-- threads, isa, ..) and its tags, and path, provider, kernel,
-- status and commit. Nothing here needs the C library.
local args = require "fewhead.base.arguments"
local json = require "fewhead.base.json"
local record_room = require "fewhead.record.record"

local M = {}

--- Settings of a run that change what a time means, by the names that a record's run has.
-- @value run_settings
M.run_settings = { "device", "threads", "isa", "multiprocessors", "capability" }

-- Fields in the order in which tables have them; others follow by name.
local ORDER = {
  "device", "threads", "isa", "multiprocessors", "capability", "preset", "pattern", "layout", "h_q", "h_pad", "d_qk", "topk",
  "ratio", "keep", "prior", "requests", "s_q", "s_kv", "l2", "call", "seed",
}
local RANK = {}
for i, name in ipairs(ORDER) do RANK[name] = i end

-- Fields that follow from others as a rule. They have a column only where the other fields do not settle them.
local DERIVED = {
  "multiprocessors", "capability", "h_pad", "window", "index_topk", "lengths", "sink", "holes", "keep", "prior", "sm_scale",
  "s_kv",
}
local IS_DERIVED = {}
for _, name in ipairs(DERIVED) do IS_DERIVED[name] = true end

-- Fields that a title leaves out: nobody asks for them while they are the same everywhere.
local UNSAID = {
  sm_scale = true, d_v = true, lse = true, max_logits = true, invalid_rows = true, scale_q = true, values = true, lengths = true,
  capability = true, requests = true, repeats = true, holes = true,
}

-- Text of a value that is a list, a call's options say: short JSON.
local function text_of(value)
  if type(value) == "table" then return (json.encode(value)) end
  return value
end

-- Fields of a case that are no setting: what lists turned out to be.
local NO_SETTING = { kinds = true, buffers = true, lists = true }

local NONE_SAID = {}

--- The tags of a record (fewhead.record.tags); {} where it has none.
local function tags_of(r)
  local tags = r.run and r.run.tags
  return type(tags) == "table" and tags or NONE_SAID
end
M.tags = tags_of

--- The fields of a record that say what was measured, as one flat table of text, numbers and booleans.
function M.settings(r)
  local flat = {}
  for name, value in pairs(r.case) do
    if not NO_SETTING[name] then flat[name] = text_of(value) end
  end
  if r.call then flat.call = text_of(r.call) end
  if r.time then flat.l2 = r.time.l2 end
  for _, name in ipairs(M.run_settings) do
    if r.run then flat[name] = r.run[name] end
  end
  return flat
end

-- Fields that a filter may name besides the settings, each as a function of the record.
local OTHERS = {
  path = function(r) return r.path end, provider = function(r) return r.provider end, kernel = function(r) return r.kernel end,
  status = function(r) return r.parity.status end, cell = record_room.cell_name, set = function(r) return r.set end,
  commit = function(r) return r.run and r.run.commit end, run = function(r) return r.run and r.run.id end,
  kind = function(r) return r.run and r.run.kind end,
}

--- Whether records have a field of this name by themselves. A tag cannot have such a name.
function M.is_field(name)
  return OTHERS[name] ~= nil or RANK[name] ~= nil or IS_DERIVED[name] ~= nil or UNSAID[name] ~= nil or name == "heads"
end

--- A field of a record by its flat name; nil where the record has none. "heads" is h_q; a tag of a record is a field too.
function M.field(r, name)
  if OTHERS[name] then return OTHERS[name](r) end
  if name == "heads" then name = "h_q" end
  if name == "l2" then return r.time and r.time.l2 end
  if name == "call" then return r.call and text_of(r.call) end
  local value = r.case[name]
  if value == nil and r.run then value = r.run[name] end
  if value == nil then value = tags_of(r)[name] end
  return text_of(value)
end

-- ---- Filters ----------------------------------------------------------------------------------------------------------------

--- { "s_q=64,128", "path=gather" } as { s_q = "64,128", path = "gather" }; nil and a message for text that is no FIELD=VALUE.
function M.parse_where(list)
  local where = {}
  for _, text in ipairs(list) do
    local name, values = text:match("^([%w_]+)=(.*)$")
    if not name then return nil, ("got %s, wanted FIELD=VALUE or FIELD=VALUE,VALUE"):format(args.show(text)) end
    where[name] = values
  end
  return where
end

local function matches(value, wanted)
  if value == nil then return false end
  value = tostring(value)
  if value == wanted then return true end -- a value may have commas of its own
  return ("," .. wanted .. ","):find("," .. value .. ",", 1, true) ~= nil
end

--- The records whose fields have the wanted values: { s_q = "64,128", device = "NVIDIA H200" }, several values with commas
-- between them. A commit may be given by its first digits. nil and a message for a field that none of the records has.
function M.filter(records, where)
  local kept = records
  for name, wanted in pairs(where) do
    local some, known = {}, false
    for _, r in ipairs(kept) do
      local value = M.field(r, name)
      known = known or value ~= nil
      local is = matches(value, tostring(wanted))
      if name == "commit" and value then is = value:sub(1, #wanted) == wanted end
      if is then some[#some + 1] = r end
    end
    if not known and #kept > 0 then
      local names = {}
      for each in pairs(M.settings(kept[1])) do names[#names + 1] = each end
      for each in pairs(tags_of(kept[1])) do names[#names + 1] = each end
      for each in pairs(OTHERS) do names[#names + 1] = each end
      table.sort(names)
      local near = args.nearest(name, names)
      near = near and (" did you mean %s?"):format(near) or ""
      return nil, ("no record has a field %s;%s fields: %s"):format(args.show(name), near, table.concat(names, ", "))
    end
    kept = some
  end
  return kept
end

-- ---- What varies ------------------------------------------------------------------------------------------------------------

local Axes = {}
Axes.__index = Axes

local function before(a, b)
  local i, j = RANK[a] or #ORDER + 1, RANK[b] or #ORDER + 1
  if i ~= j then return i < j end
  return a < b
end

local NONE = {} -- stands for a field that a record lacks

-- For each flat record one table that is the same for all with the same values of `names`. base: such a list for other names.
local function groups_of(flats, names, base)
  local root, groups = {}, {}
  for i, flat in ipairs(flats) do
    local node = base and base[i] or root
    for _, name in ipairs(names) do
      local value = flat[name]
      if value == nil then value = NONE end
      local by_value = node[name]
      if not by_value then
        by_value = {}
        node[name] = by_value
      end
      local next_node = by_value[value]
      if not next_node then
        next_node = {}
        by_value[value] = next_node
      end
      node = next_node
    end
    groups[i] = node
  end
  return groups
end

-- Whether records of one group have one value of the field.
local function settled(flats, groups, name)
  local value_of = {}
  for i, flat in ipairs(flats) do
    local value, group = flat[name], groups[i]
    if value ~= nil then
      if value_of[group] == nil then value_of[group] = value
      elseif value_of[group] ~= value then return false end
    end
  end
  return true
end

-- Whether two records have the same flat fields since they share the tables that have these.
local function shares(r, s)
  local l2, other = r.time and r.time.l2, s.time and s.time.l2
  return r.case == s.case and r.run == s.run and r.call == s.call and l2 == other
end

-- The flat fields of each record; each table once; and those that belong to a time, as a set. Records that follow one another in
-- a file share their case (fewhead.record.record), and then their flat fields too.
local function flats_of(records)
  local flats, distinct, timed = {}, {}, {}
  for i, r in ipairs(records) do
    if i > 1 and shares(records[i - 1], r) then flats[i] = flats[i - 1]
    else
      flats[i] = M.settings(r)
      for name, value in pairs(tags_of(r)) do flats[i][name] = text_of(value) end
      distinct[#distinct + 1] = flats[i]
    end
    if r.time then timed[flats[i]] = true end
  end
  return flats, distinct, timed
end

--- What varies in records: { varying = names in the order of columns, constant = { [name] = value }, flats = the records' flat
-- fields in their order; records may share such a table }. A field that some records lack varies only if the others differ in it:
-- a refused case need not know all of its fields. It is constant if every record with a time has it. Fields that follow from
-- others (s_kv from s_q and ratio, say) vary only where they do not follow.
function M.of(records)
  local flats, distinct, timed = flats_of(records)
  local first, varies, lacking = {}, {}, {}
  for _, flat in ipairs(distinct) do
    for name, value in pairs(flat) do
      if first[name] == nil then first[name] = value
      elseif first[name] ~= value then varies[name] = true end
    end
  end
  for flat in pairs(timed) do
    for name in pairs(first) do lacking[name] = lacking[name] or flat[name] == nil end
  end
  local varying, constant = {}, {}
  for name, value in pairs(first) do
    if not varies[name] then
      if not lacking[name] then constant[name] = value end
    elseif not IS_DERIVED[name] then varying[#varying + 1] = name end
  end
  table.sort(varying, before)
  local groups
  for _, name in ipairs(DERIVED) do
    if varies[name] then
      groups = groups or groups_of(distinct, varying)
      if not settled(distinct, groups, name) then
        varying[#varying + 1] = name
        groups = groups_of(distinct, { name }, groups)
      end
    end
  end
  table.sort(varying, before)
  return setmetatable({ varying = varying, constant = constant, flats = flats, distinct = distinct }, Axes)
end

-- How the fields of a title read; others are "name value".
local WORDS = {
  h_q = "%s heads", threads = "%s threads", multiprocessors = "%s multiprocessors", l2 = "%s caches", pattern = "%s lists",
  layout = "layout %s", s_q = "s_q %s", device = "%s", preset = "%s", isa = "%s",
}
--- One line that says what does not vary: "NVIDIA H200, 8 heads, d_qk 512, topk 640". without: names to leave out, as a set.
function Axes:constant_text(without)
  local names, parts = {}, {}
  for name in pairs(self.constant) do
    if not UNSAID[name] and not (without and without[name]) then names[#names + 1] = name end
  end
  table.sort(names, before)
  for i, name in ipairs(names) do
    local word = WORDS[name]
    local value = tostring(self.constant[name])
    parts[i] = word and word:format(value) or name .. " " .. value
  end
  return table.concat(parts, ", ")
end

--- One text for a record's values of the fields that vary, "csa, s_q 64": what a row or a curve is called. names: other fields.
function M.label(flat, names)
  local parts = {}
  for _, name in ipairs(names) do
    if flat[name] ~= nil then
      local plain = name == "pattern" or name == "device" or name == "preset" or name == "isa"
      parts[#parts + 1] = plain and tostring(flat[name]) or WORDS[name] and WORDS[name]:format(tostring(flat[name]))
        or name .. " " .. tostring(flat[name])
    end
  end
  return table.concat(parts, ", ")
end

return M
