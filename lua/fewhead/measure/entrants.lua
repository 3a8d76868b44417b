--- Entrants: who takes part when kernels are compared: FlashMLA and FlashAttention 3 where they are found, the library's paths,
-- plug-ins.
--
--     local field = entrants.of(dev, { heads = 8, providers = { mine } })
--     print(table.concat(field.lines, "\n"))      -- FlashMLA: 0.33.0
--     fh.compare(case, field.list)
local args = require "fewhead.base.arguments"
local path_table = require "fewhead.device.path"
local providers = require "fewhead.device.provider"

local M = {}

-- FlashMLA as engines call it: with 64 heads at least.
local FLASHMLA_HEADS = 64

-- FlashMLA for a device; nil and why there is none.
local function flashmla_of(dev, padding)
  local found, reason = providers.flashmla { heads = FLASHMLA_HEADS, padding = padding }
  if found and not found.kinds[dev.kind] then
    return nil, ("FlashMLA %s does not run on %s; the built-in padded path stands in"):format(found.text, dev.name)
  end
  return found, reason
end

--- Who takes part on a device. o: heads of the cases, the most of them; providers, a list of plug-ins; padding, "timed" where
-- FlashMLA's padding of heads and lists is a part of its times. Returns { base = what all are measured against: FlashMLA on 64
-- heads, or "padded" where there is none; list = all, base first; native = those that do not pad to 64 heads, and checked = all,
-- both without auto; flashmla = the provider or nil; lines = who they are, as text }.
function M.of(dev, o)
  args.options("entrants.of", o, { "heads", "providers", "padding" })
  local flashmla, absent = flashmla_of(dev, o.padding)
  -- Where FlashMLA has kernels for fewer heads, with those too.
  local few = flashmla and providers.flashmla({ padding = o.padding }, "flashmla-few")
  if few and few.text == flashmla.text then few = nil end
  local field = {
    flashmla = flashmla, base = flashmla or "padded", list = {}, native = {}, checked = {},
    lines = { absent or "FlashMLA: " .. flashmla.text },
  }
  local function add(path, pads)
    field.list[#field.list + 1] = path
    if path ~= "auto" then field.checked[#field.checked + 1] = path end
    if path ~= "auto" and not pads then field.native[#field.native + 1] = path end
  end
  if flashmla then add(flashmla, true) end
  add("padded", true)
  for _, path in ipairs(path_table.native()) do
    if dev:has_path(path, o.heads) then add(path) end
  end
  add "auto"
  local function say(line) field.lines[#field.lines + 1] = line end
  if few then
    add(few)
    say("flashmla-few: " .. few.text)
  end
  if dev.kind == "cuda" then -- nowhere else is it looked for
    local fa3, reason = providers.fa3()
    if fa3 then add(fa3) end
    say(fa3 and "fa3: " .. fa3.text or reason)
  end
  for _, provider in ipairs(o.providers or {}) do
    add(provider)
    say(("%s: version %s"):format(provider.name, provider.text))
  end
  return field
end

return M
