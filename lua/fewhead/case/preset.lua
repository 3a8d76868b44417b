--- Presets: the attention shapes that published models give one rank, by model and tensor-parallel size.
--
--     local preset = require "fewhead.case.preset"
--     local p = preset.get("v4.1-flash tp8")
--     print(p.h_q, p.h_pad, p.topk)              --> 8  64  640
--
-- Figures are those of the models' configuration files. V is the first 512 columns of the KV row everywhere.
local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"

local M = {}

-- ratios: how many layers run at each KV compression ratio; 0 = the layer sees its sliding window only, 1 = one KV row a token.
-- patterns: the pattern that the lists of layers at a ratio follow, where it is not picks and a window (fewhead.pattern). block:
-- KV rows that the indexer picks together.
-- lists: where layers share index lists, { so many lists, ratio, layers that use each }; elsewhere every layer has its own, but
-- for the window-only layers, whose list depends on the row alone.
local MODELS = {
  -- 8 lists serve the 38 layers that have an index: 6, 6, 6, 4, 4, 4, 4 and 4 of them. The 18 layers of ratio 2 come first, so
  -- the three lists of 6 are taken to be theirs.
  ["v4.1-flash"] = {
    heads = 64, hidden = 5120, d_qk = 512, index_topk = 512, window = 128, ratios = { [0] = 2, [1] = 20, [2] = 18 },
    lists = { { 1, 0, 2 }, { 3, 2, 6 }, { 5, 1, 4 } },
  },
  ["v4-flash"] = {
    heads = 64, hidden = 4096, d_qk = 512, index_topk = 512, window = 128, ratios = { [0] = 2, [4] = 21, [128] = 20 },
    patterns = { [128] = "all" },
  },
  ["v4-pro"] = {
    heads = 128, hidden = 7168, d_qk = 512, index_topk = 1024, window = 128, ratios = { [4] = 30, [128] = 31 },
    patterns = { [128] = "all" },
  },
  ["v3.2"] = { heads = 128, hidden = 7168, d_qk = 576, index_topk = 2048, window = 0, ratios = { [1] = 61 } },
  ["glm-5"] = { heads = 64, hidden = 6144, d_qk = 576, index_topk = 2048, window = 0, ratios = { [1] = 78 } },
  -- As GLM-5, but only layers 0, 1, 2, 6, 10 .. 74 have an index (indexer_types; index_topk_freq 4, index_skip_topk_offset 3) and
  -- those between use the list of the last one that has.
  ["glm-5.2"] = {
    heads = 64, hidden = 6144, d_qk = 576, index_topk = 2048, window = 0, ratios = { [1] = 78 },
    lists = { { 2, 1, 1 }, { 19, 1, 4 } },
  },
  -- 512 pools of 4 tokens and the tail of 3 at most: lists 2051 wide. The model's depth and hidden size are not known here: one
  -- layer stands for all.
  ["glm-5.3-flash"] = {
    heads = 64, d_qk = 512, index_topk = 2048, window = 0, block = 4, ratios = { [1] = 1 }, patterns = { [1] = "pools" },
  },
}
local TP = { 1, 2, 4, 8, 16 }
local D_V = 512

--- What fh.case takes where nobody says otherwise: the model and TP size that the few-head problem was reported with.
M.default = "v4.1-flash tp8"

local names, by_name = {}, {}
for model, m in pairs(MODELS) do
  for _, tp in ipairs(TP) do
    if m.heads % tp == 0 then
      local name = ("%s tp%d"):format(model, tp)
      names[#names + 1] = name
      by_name[name] = { model = model, tp = tp }
    end
  end
end
table.sort(names)

-- The index lists of a model, { ratio =, layers = } each.
local function lists_of(m, ratios)
  local kinds, lists = m.lists, {}
  if not kinds then
    kinds = {}
    for i, ratio in ipairs(ratios) do kinds[i] = ratio == 0 and { 1, 0, m.ratios[0] } or { m.ratios[ratio], ratio, 1 } end
  end
  for _, kind in ipairs(kinds) do
    for _ = 1, kind[1] do
      lists[#lists + 1] = { ratio = kind[2], layers = kind[3], pattern = m.patterns and m.patterns[kind[2]] }
    end
  end
  return lists
end

--- Sorted list of the models.
function M.models()
  local list = {}
  for model in pairs(MODELS) do list[#list + 1] = model end
  table.sort(list)
  return list
end

--- Tensor-parallel sizes, rising.
M.tp = TP

--- What lists the names, in messages.
M.listed = "fewhead run gate_sweep --list"

--- Sorted list of the names that get() knows.
function M.names()
  local copy = {}
  for i, name in ipairs(names) do copy[i] = name end
  return copy
end

--- Raise unless `name` is one of names().
-- The message: "WHAT: got .., wanted one of 35 names (fewhead run gate_sweep --list lists them)", and the nearest ones.
-- Returns name.
function M.check(what, name, level)
  return (args.enum(what, name, names, (level or 2) + 1, M.listed))
end

--- A fresh table: name, model, tp; heads of the model, h_q of one rank, h_pad that a 64- or 128-head kernel pads them to; d_qk,
-- d_v; index_topk + window = topk, the width of an index list; ratios, a list of the compression ratios of its layers in rising
-- order, and layers_at[ratio]; ratio, the smallest that compresses or keeps whole tokens, so the layers with the longest lists;
-- layers, hidden (nil where it is not known); block, KV rows that the indexer picks together, or nil; lists, the index lists of
-- the layers, { ratio =, layers = how many use it, pattern = the name of the pattern that they follow, nil for picks and a
-- window } each, in the order of the layers where a model shares them, else by ratio; pattern, that of the lists at `ratio`. An
-- unknown name raises with the nearest one.
function M.get(name, level)
  M.check("preset", name, level or 2)
  local key = by_name[name]
  local m = MODELS[key.model]
  local ratios, layers_at, layers = {}, {}, 0
  for ratio, count in pairs(m.ratios) do
    ratios[#ratios + 1] = ratio
    layers_at[ratio] = count
    layers = layers + count
  end
  table.sort(ratios)
  local ratio = ratios[1] == 0 and ratios[2] or ratios[1]
  local h_q = m.heads / key.tp
  return {
    name = name, model = key.model, tp = key.tp, heads = m.heads, h_q = h_q, h_pad = F.C.fh_padded_heads(h_q),
    d_qk = m.d_qk, d_v = D_V, topk = m.index_topk + m.window + (m.block or 1) - 1, index_topk = m.index_topk, window = m.window,
    ratios = ratios, layers_at = layers_at, ratio = ratio, layers = layers, hidden = m.hidden,
    lists = lists_of(m, ratios), block = m.block, pattern = m.patterns and m.patterns[ratio],
  }
end

--- The pattern that the lists of preset `name` follow; nil for picks and a window, and for a name of no preset.
function M.pattern_of(name) return by_name[name] and M.get(name).pattern end

return M
