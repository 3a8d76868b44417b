--- Work that plug-ins take part in, in a process of its own: a path that crashes, hangs, ends the process or loses the device
-- ends its own part alone, it is known which one it was, and a new process does the rest.
--
--     local crew = assert(isolate.crew(dev, { toy, loops }))
--     local answer, out = isolate.rounds(crew, { "padded", toy, loops }, ask)
--     print(out.toy.reason)                        --> it ended the process by signal 11 (Segmentation fault)

local providers = require "fewhead.device.provider"
local worker = require "fewhead.measure.worker"

local M = {}

--- Whether this process is such a worker: what it calls runs here.
M.here = false

-- The worker of the last call and what it was opened for. It is kept: opening a GPU or loading PyTorch takes seconds.
local held

--- The providers of a list of paths.
function M.providers_of(list)
  local some = {}
  for _, path in ipairs(list) do
    if providers.is(path) then some[#some + 1] = path end
  end
  return some
end

--- A worker on a device like dev with these providers loaded | nil, err. It is this module's, and ends with this process.
function M.crew(dev, list)
  local info, key = dev:info(), { dev.name }
  key[2], key[3] = tostring(info.threads), tostring(info.isa)
  for _, provider in ipairs(list) do key[#key + 1] = provider.number end
  key = table.concat(key, " ")
  if held and held.key == key then return held.crew end
  if held then held.crew:close() end
  held = nil
  local crew, err = worker.open { device = dev.name, threads = info.threads, isa = info.isa, providers = list }
  if not crew then return nil, err end
  held = { crew = crew, key = key }
  return crew
end

-- Who is to blame for a failure, of the paths that took part: a list of their names, empty where none is known. Where the process
-- crashed in the code of no plug-in, all of them are suspects: one may have damaged it.
local function culprits_of(failure, left)
  local one, names = failure.provider or failure.lost and failure.path, {}
  for _, path in ipairs(left) do
    local name = providers.name_of(path)
    local suspect = not one and failure.ended and providers.is(path)
    if name == one or suspect then names[#names + 1] = name end
  end
  return names
end

--- Have a crew do something with the paths of a list: crew:call(ask(their names), limits), and where some end it, again without
-- them. ask returns module, function and arguments. Returns the last answer, and by name the failures of those that are out.
function M.rounds(crew, list, ask, limits)
  local out = {}
  while true do
    local left, names = {}, {}
    for _, path in ipairs(list) do
      local name = providers.name_of(path)
      if not out[name] then left[#left + 1], names[#names + 1] = path, name end
    end
    if #left == 0 then return { value = {} }, out end
    local module, name, arguments = ask(names)
    local answer = crew:call(module, name, arguments, limits)
    local culprits = answer.failure and culprits_of(answer.failure, left) or {}
    if #culprits == 0 then return answer, out end
    for _, culprit in ipairs(culprits) do
      local failure = {}
      for key, value in pairs(answer.failure) do failure[key] = value end
      if #culprits > 1 then failure.reason = failure.reason .. ", or another plug-in of this cell did" end
      out[culprit] = failure
    end
  end
end

--- The parity of a path that is out: { status = "error", .. }, and its failure as a record has it: { phase, path, code, text }.
function M.parity_of(name, failure)
  return {
    status = "error", against = "reference", compared = 0, reason = ("%s did not come back: %s"):format(name, failure.reason),
  }, { phase = failure.phase, path = failure.path, code = failure.code, text = failure.text }
end

return M
